"""Replicas on real Ray nodes: a blocked engine (case G1), pools and resources (case G5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from app.cluster import BlockingTarget, WhereReplica, switched_on, until
from app.conftest import FakeCluster
from app.served import run
from paceline.app import deployment
from paceline.app_config import AppConfig, DataPlane, ReplicaSettings, Resources, parse
from paceline.cli.deploy_watch import DeployWatch
from paceline.cli.preflight import check_placement, cluster_nodes
from paceline.cli.stop_signal import Stopped
from paceline.errors import Unavailable
from paceline.placement import POOL_LABEL, Demand
from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.target.config import TargetConfig
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc

pytestmark = pytest.mark.ray
CHECK_PERIOD_S, CHECK_TIMEOUT_S = 0.5, 1.0
STRIKES = 3  # failed checks after which Serve replaces a replica


@pytest.fixture
def application(fake_cluster: FakeCluster) -> Iterator[str]:
    """A name for the test's application, which is deleted afterwards."""
    from ray import serve

    yield "tested"
    serve.delete("tested")


def start_target(name: str, switch: Path, stall_s: float) -> Any:
    """Runs one BlockingTarget; returns its handle."""
    from ray import serve

    replica = type("BlockingTarget", (BlockingTarget,), {"switch": switch})
    settings = ReplicaSettings(
        pool="target", health_check_period_s=CHECK_PERIOD_S, health_check_timeout_s=CHECK_TIMEOUT_S, drain_s=0
    )
    bound = deployment(replica, "Target", settings).bind(
        TargetConfig(stall_s=stall_s), DataPlane(host="127.0.0.1"), 1, 0.0, None
    )
    return serve.run(bound, name=name, route_prefix=None)


def decode(stub: target_pb2_grpc.TargetServiceStub, tokens: int) -> Any:
    """A stream of `tokens` greedy tokens."""
    return stub.Decode(
        target_pb2.DecodeRequest(
            prompt_tokens=ints_to_bytes([1, 2, 3]),
            sampling=common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0, seed=0),
            max_tokens=tokens,
            speculation=common_pb2.SpeculationParams(
                draft=False, budget=0, proposal=common_pb2.PROPOSAL_RANKED, strength=1.0
            ),
        )
    )


@asynccontextmanager
async def target_stub(address: str) -> AsyncIterator[target_pb2_grpc.TargetServiceStub]:
    async with open_channel(address) as channel:
        yield target_pb2_grpc.TargetServiceStub(channel)


async def finish(stream: Any) -> target_pb2.TargetFinish:
    async for message in stream:
        if message.WhichOneof("event") == "finish":
            return message.finish
    raise AssertionError("the stream ended without a finish")


async def test_blocked_engine_keeps_its_replica_and_answers_everything_else(application: str, tmp_path: Path) -> None:
    """The pass blocks for longer than Serve would wait if the event loop were blocked with it."""
    switch = tmp_path / "block"
    handle = await asyncio.to_thread(start_target, application, switch, 600.0)
    before = await handle.lease.remote()
    async with target_stub(before["address"]) as stub:
        assert (await finish(decode(stub, 4))).usage.completion_tokens == 4
        with switched_on(switch):
            stream = decode(stub, 6)
            waiting = asyncio.create_task(finish(stream))
            await until(lambda: _active(stub))
            slowest = 0.0
            until_s = time.monotonic() + 2 * STRIKES * (CHECK_PERIOD_S + CHECK_TIMEOUT_S)
            while time.monotonic() < until_s:
                asked = time.monotonic()
                await stub.GetTargetStatus(target_pb2.GetTargetStatusRequest(), timeout=5)
                await stub.GetTargetInfo(target_pb2.GetTargetInfoRequest(), timeout=5)
                assert await asyncio.wait_for(handle.lease.remote(), 10) == before, "the replica was replaced"
                slowest = max(slowest, time.monotonic() - asked)
                await asyncio.sleep(0.05)
            assert not waiting.done(), "the pass was to be blocked"
        assert (await waiting).usage.completion_tokens == 6, "the blocked stream goes on"
    assert slowest < 5.0
    assert await handle.lease.remote() == before


async def _active(stub: target_pb2_grpc.TargetServiceStub) -> bool:
    status = await stub.GetTargetStatus(target_pb2.GetTargetStatusRequest(), timeout=5)
    return status.target.active_sessions == 1


async def test_engine_that_never_returns_is_unhealthy_and_replaced(application: str, tmp_path: Path) -> None:
    switch = tmp_path / "block"
    handle = await asyncio.to_thread(start_target, application, switch, 1.0)
    before = await handle.lease.remote()
    async with target_stub(before["address"]) as stub:
        with switched_on(switch):
            stream = decode(stub, 6)
            ended = asyncio.create_task(_status_of(stream))

            async def replaced() -> bool:
                try:
                    return (await asyncio.wait_for(handle.lease.remote(), 5))["incarnation"] != before["incarnation"]
                except Exception:  # between the two there may be none
                    return False

            await until(replaced)
            assert await ended is grpc.StatusCode.UNAVAILABLE, "never accepted and silent"
    after = await handle.lease.remote()
    async with target_stub(after["address"]) as stub:
        assert (await finish(decode(stub, 4))).usage.completion_tokens == 4


async def _status_of(stream: Any) -> grpc.StatusCode:
    try:
        await finish(stream)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


class Told:
    """A Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def detail(self, text: str) -> None:
        self.lines.append(text)

    say = detail


class Patience:
    """A StopSignal whose user has had enough after some looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def call(self, function: Any) -> Any:
        return function()

    def wait(self, seconds: float) -> bool:
        time.sleep(min(seconds, 0.1))
        self._looks -= 1
        return self._looks <= 0


def start_where(name: str, settings: ReplicaSettings, *, wait: bool = True) -> Any:
    """Runs a deployment that tells where its replicas are; returns its handle."""
    from ray import serve

    target = serve.RunTarget(deployment(WhereReplica, "Target", settings).bind(), name=name, route_prefix=None)
    return serve.run_many([target], wait_for_ingress_deployment_creation=wait, wait_for_applications_running=wait)[0]


async def pools_of(handle: Any) -> list[str]:
    """Pool of the node of every running replica."""
    nodes = {node.name: node.labels.get(POOL_LABEL, "") for node in cluster_nodes()}
    return [nodes[name] for name in await handle.broadcast("where").results_async()]


@pytest.mark.parametrize("pool", ["target", "drafter", "gateway"])
async def test_replicas_are_on_their_pool_and_nowhere_else(application: str, pool: str) -> None:
    handle = await asyncio.to_thread(start_where, application, ReplicaSettings(replicas=3, pool=pool))
    assert await pools_of(handle) == [pool] * 3


async def test_what_does_not_fit_stays_pending_and_names_what_is_missing(application: str) -> None:
    settings = ReplicaSettings(replicas=2, pool="target", resources=Resources(custom={"target_slot": 1}))
    handle = await asyncio.to_thread(lambda: start_where(application, settings, wait=False))
    told = Told()
    demand = Demand("target", 2, "target", settings.resources.by_ray_name())
    with pytest.raises(Stopped):
        await asyncio.to_thread(DeployWatch(application, [demand], told, Patience(looks=60)).wait_running)
    assert any("still pending: target: a replica asks for 1 target_slot" in line for line in told.lines)
    assert any("1 running, 1 starting" in line for line in told.lines)
    assert await pools_of(handle) == ["target"]


def test_gpu_that_the_pool_does_not_have_is_refused_before_anything_is_deployed(fake_cluster: FakeCluster) -> None:
    config = parse({"target": {"resources": {"num_gpus": 1}}})
    with pytest.raises(Unavailable, match="target: a replica asks for 1 GPU; a node of pool 'target' has at most 0"):
        check_placement(config, lambda text: None)


def test_fractions_that_exceed_a_gpu_are_told(fake_cluster: FakeCluster) -> None:
    told: list[str] = []
    check_placement(parse({"drafter": {"replicas": 2, "resources": {"num_gpus": 0.6}}}), told.append)
    (line,) = told
    assert line.startswith("1 of 2 replicas stay pending: drafter: a replica asks for 0.6 GPU")


def test_default_application_fits(fake_cluster: FakeCluster) -> None:
    told: list[str] = []
    check_placement(AppConfig(), told.append)
    assert told == []


def test_unknown_pool_is_refused_and_the_joined_cluster_stays_as_it_was(
    fake_cluster: FakeCluster, tmp_path: Path, root: Path
) -> None:
    from ray import serve

    text = (root / "deploy/serve/local.yaml").read_text()
    config = tmp_path / "serve.yaml"
    config.write_text(text.replace("pool: drafter", "pool: attic"))
    assert config.read_text() != text
    before = serve.status().applications
    done = run("serve", "--config", str(config), "--ray-address", fake_cluster.address)
    assert done.returncode == 1
    assert "drafter.pool: no such pool: 'attic'; pools of this cluster: drafter, gateway, target" in done.stderr
    assert serve.status().applications == before
    assert len(cluster_nodes()) == 3
