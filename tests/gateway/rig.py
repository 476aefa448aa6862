"""A gateway over real gRPC, with targets that do what a test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from gateway.tokenizers_for_tests import ByteTokenizer
from paceline.gateway.config import GatewayConfig
from paceline.gateway.directory import TargetLease
from paceline.gateway.listener import GatewayServer
from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.rpc.server import DataPlaneServer
from paceline.rpc.tls import TlsConfig
from paceline.v1 import common_pb2, inference_pb2, inference_pb2_grpc, target_pb2, target_pb2_grpc
from paceline_client import AsyncClient, RetryPolicy

PATIENCE_S = 30.0  # a test that waits longer has failed
STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH

# Tokens, the end, an abort, or a whole message.
Step = list[int] | target_pb2.TargetFinish | grpc.StatusCode | target_pb2.DecodeResponse
Script = Callable[[target_pb2.DecodeRequest], AsyncIterator[Step]]


def finish(reason: common_pb2.FinishReason = LENGTH, match: str = "", **stats: Any) -> target_pb2.TargetFinish:
    return target_pb2.TargetFinish(reason=reason, stop_match=match, speculation=common_pb2.SpeculationStats(**stats))


def model(tokenizer: Any = None, **changes: Any) -> inference_pb2.GetModelInfoResponse:
    known = tokenizer or ByteTokenizer()
    fields = {
        "model": "fake",
        "vocab_size": known.vocab_size,
        "context_length": 4096,
        "eos_token_ids": sorted(known.eos_token_ids),
        "dtype": "float32",
        "device": "cpu",
        "tokenizer_fingerprint": known.fingerprint,
        "proposer": "suffix",
        "default_sampling": common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0),
        "default_budget": 8,
        "max_budget": 64,
        "version": "0.0.0",
    }
    return inference_pb2.GetModelInfoResponse(**{**fields, **changes})


def says(tokens: Sequence[int], chunk: int = 1, end: target_pb2.TargetFinish | None = None) -> Script:
    """Emits `tokens` behind those already delivered, `chunk` at a time, cut at max_tokens. Knows no stop strings."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        done = len(bytes_to_ints(request.delivered_tokens, "delivered"))
        left = list(tokens[done : request.max_tokens])
        for start in range(0, len(left), chunk):
            yield left[start : start + chunk]
        cut = len(tokens) > request.max_tokens
        yield end or finish(LENGTH if cut else STOP)

    return script


class FakeTarget(target_pb2_grpc.TargetServiceServicer):
    """Follows `script`, a new generator for each session."""

    def __init__(self, script: Script, info: inference_pb2.GetModelInfoResponse | None = None) -> None:
        self.script, self.info = script, info or model()
        self.requests: list[target_pb2.DecodeRequest] = []
        self.left_s: list[float | None] = []  # what the calls' deadlines left when they came
        self.active = 0
        self.idle = asyncio.Event()  # no session is being decoded
        self.cancelled = asyncio.Event()  # a session ended before its script
        self.sent = self.described = 0
        self.address = ""
        self._server: DataPlaneServer | None = None

    async def start(self, tls: TlsConfig | None = None, port: int = 0) -> TargetLease:
        def add(server: grpc.aio.Server) -> None:
            target_pb2_grpc.add_TargetServiceServicer_to_server(self, server)

        self._server = DataPlaneServer(("paceline.v1.TargetService",), add, host="127.0.0.1", port=port, tls=tls)
        self.address = await self._server.start()
        return self.lease

    @property
    def lease(self) -> TargetLease:
        return TargetLease(self.address, f"of {self.address}")

    async def stop(self) -> None:
        """Ends at once, running streams too."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def Decode(self, request: target_pb2.DecodeRequest, context: Any) -> None:  # noqa: N802
        self.requests.append(request)
        self.left_s.append(context.time_remaining())
        self.active += 1
        self.idle.clear()
        try:
            async for step in self.script(request):
                if isinstance(step, grpc.StatusCode):
                    await context.abort(step, "as told")
                elif isinstance(step, target_pb2.TargetFinish):
                    await context.write(target_pb2.DecodeResponse(finish=step))
                elif isinstance(step, target_pb2.DecodeResponse):
                    await context.write(step)
                    self.sent += len(step.tokens) // 4
                else:
                    await context.write(target_pb2.DecodeResponse(tokens=ints_to_bytes(step)))
                    self.sent += len(step)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.active -= 1
            if not self.active:
                self.idle.set()

    async def GetTargetInfo(self, request: Any, context: Any) -> target_pb2.GetTargetInfoResponse:  # noqa: N802
        self.described += 1
        return target_pb2.GetTargetInfoResponse(model=self.info)

    async def GetTargetStatus(self, request: Any, context: Any) -> target_pb2.GetTargetStatusResponse:  # noqa: N802
        target = inference_pb2.TargetStatus(
            address=self.address, active_sessions=self.active, kv_pages_total=10, drafted=8, accepted=4,
            fallbacks={"late": 2}, drafter_address="127.0.0.1:1", drafter_state="ready",
        )  # fmt: skip
        drafter = inference_pb2.DrafterStatus(address="127.0.0.1:1", incarnation="d", proposer="suffix", sessions=3)
        return target_pb2.GetTargetStatusResponse(target=target, drafters=[drafter])


@dataclass
class Directory:
    """Names leases in turn, the last one for ever. An exception in the list is raised."""

    leases: list[TargetLease | Exception]
    asked: int = 0

    async def lease(self) -> TargetLease:
        answer = self.leases[min(self.asked, len(self.leases) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


class Nowhere:
    """A directory that does not answer, as a pool without replicas."""

    async def lease(self) -> TargetLease:
        await asyncio.Event().wait()
        raise AssertionError


@dataclass
class Served:
    """A running gateway and clients for it."""

    server: GatewayServer
    address: str
    client: AsyncClient
    stub: inference_pb2_grpc.InferenceServiceStub
    directory: Any
    targets: list[FakeTarget] = field(default_factory=list)


@asynccontextmanager
async def serve(directory: Any, tokenizer: Any = None, **settings: Any) -> AsyncIterator[Served]:
    """A gateway in front of whatever `directory` names."""
    config = GatewayConfig(**{"failover_pause_ms": 1.0, **settings})
    server = GatewayServer(config, directory, tokenizer or ByteTokenizer())
    address = await server.start()
    try:
        async with (
            AsyncClient(address, retry=RetryPolicy(attempts=1)) as client,
            grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)]) as channel,
        ):
            yield Served(server, address, client, inference_pb2_grpc.InferenceServiceStub(channel), directory)
    finally:
        await server.stop(0)


@asynccontextmanager
async def gateway(
    *scripts: Script, tokenizer: Any = None, info: Any = None, infos: Sequence[Any] = (), **settings: Any
) -> AsyncIterator[Served]:
    """A gateway whose leases go to one fake target per script, in turn."""
    async with AsyncExitStack() as stack:
        targets = []
        for number, script in enumerate(scripts):
            described = infos[number] if infos else info or model(tokenizer)
            targets.append(FakeTarget(script, described))
            stack.push_async_callback(targets[-1].stop)
        leases: list[TargetLease | Exception] = [await target.start() for target in targets]
        served = await stack.enter_async_context(serve(Directory(leases), tokenizer, **settings))
        served.targets = targets
        yield served


async def within(awaitable: Any) -> Any:
    """Waits with the test's patience."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that no event tells."""
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError
