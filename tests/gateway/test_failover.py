"""Targets that die: the reply goes on elsewhere, no token lost, none twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gateway.rig import (
    STOP,
    Directory,
    FakeTarget,
    Script,
    Step,
    finish,
    gateway,
    model,
    says,
    serve,
    within,
)
from paceline.errors import Unavailable as NoTarget
from paceline.gateway.directory import TargetLease
from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.v1 import target_pb2
from paceline_client import ClientError, Delta, InvalidRequest, Overloaded, Reply, ServerFault, Unavailable

TEXT = list(b"The quick brown fox")


def aborts(code: grpc.StatusCode, after: int = 0, chunk: int = 3) -> Script:
    """Sends some tokens behind those delivered, then ends with a status."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        done = len(bytes_to_ints(request.delivered_tokens, "delivered"))
        left = TEXT[done : min(done + after, request.max_tokens)]
        for start in range(0, len(left), chunk):
            yield left[start : start + chunk]
        yield code

    return script


async def ends_early(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
    """A stream that ends well and lacks its finish."""
    yield TEXT[:4]


async def check_whole(reply: Reply) -> None:
    assert list(reply.token_ids) == TEXT
    assert reply.text == "The quick brown fox"
    assert reply.finish.usage.completion_tokens == len(TEXT)


@pytest.mark.parametrize("after", [0, 1, 7])
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_lost_stream_goes_on_elsewhere(after: int, code: grpc.StatusCode) -> None:
    async with gateway(aborts(code, after), says(TEXT, 2)) as served:
        reply = await within(served.client.complete("x", temperature=0.7, stop=["zzz"], max_tokens=30, timeout_s=60))
        await check_whole(reply)
        first, second = (target.requests[0] for target in served.targets)
    assert bytes_to_ints(second.delivered_tokens, "delivered").tolist() == TEXT[:after]
    second.ClearField("delivered_tokens")
    assert second == first, "the same prompt, seed, limits and stop strings"
    assert reply.finish.seed == first.sampling.seed
    assert all(left is not None and 0 < left <= 60 for target in served.targets for left in target.left_s)


async def test_a_stream_without_a_finish_goes_on_elsewhere() -> None:
    async with gateway(ends_early, says(TEXT)) as served:
        await check_whole(await within(served.client.complete("x")))


async def test_a_killed_process_goes_on_elsewhere() -> None:
    """SIGKILL in the middle of a stream."""
    async with gateway(says(TEXT)) as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).parent / "killable_target.py"), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            address = (await within(process.stdout.readline())).decode().strip()
            served.directory.leases = [TargetLease(address, "killable"), served.targets[0].lease]
            tokens: list[int] = []
            async for event in served.client.generate("x"):
                if isinstance(event, Delta):
                    tokens += event.token_ids
                if process.returncode is None and len(tokens) >= 5:
                    os.kill(process.pid, signal.SIGKILL)
                    await process.wait()
            assert tokens == TEXT
            assert bytes_to_ints(served.targets[0].requests[0].delivered_tokens, "d").tolist() == TEXT[:5]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_dead_address_is_left_before_the_first_token() -> None:
    async with gateway(says(TEXT)) as served:
        served.directory.leases = [TargetLease("127.0.0.1:1", "dead"), served.targets[0].lease]
        await check_whole(await within(served.client.complete("x")))


async def test_several_deaths_in_one_reply() -> None:
    lost = grpc.StatusCode.UNAVAILABLE
    scripts = [aborts(lost, 3), aborts(lost, 1), aborts(lost, 3), aborts(lost, 2), aborts(lost, 1), says(TEXT)]
    async with gateway(*scripts, max_failovers=1) as served:
        await check_whole(await within(served.client.complete("x")))


async def test_tries_without_progress_are_bounded_and_the_last_reason_is_told() -> None:
    async with gateway(
        aborts(grpc.StatusCode.UNAVAILABLE, 4), aborts(grpc.StatusCode.UNAVAILABLE), max_failovers=3
    ) as served:
        stream = served.client.generate("x")
        tokens = [*(await anext(stream)).token_ids, *(await anext(stream)).token_ids]  # type: ignore[union-attr]
        assert tokens == TEXT[:4]
        with pytest.raises(Unavailable, match=r"as told.*max_failovers") as lost:
            await within(anext(stream))
        assert not lost.value.retryable, "a part of the reply was delivered"
        assert len(served.targets[1].requests) == 3


async def test_no_failover_where_none_is_allowed() -> None:
    async with gateway(aborts(grpc.StatusCode.UNAVAILABLE, 4), says(TEXT), max_failovers=0) as served:
        with pytest.raises(Unavailable):
            await within(served.client.complete("x"))
        assert not served.targets[1].requests


async def test_a_target_that_is_full_is_told_to_the_client_at_once() -> None:
    async with gateway(aborts(grpc.StatusCode.RESOURCE_EXHAUSTED), says(TEXT)) as served:
        with pytest.raises(Overloaded, match="as told"):
            await within(served.client.complete("x"))


async def test_a_reply_under_way_waits_for_a_place_elsewhere() -> None:
    full = aborts(grpc.StatusCode.RESOURCE_EXHAUSTED)
    async with gateway(aborts(grpc.StatusCode.UNAVAILABLE, 4), full, full, says(TEXT)) as served:
        await check_whole(await within(served.client.complete("x")))


async def test_a_pool_that_is_empty_for_a_moment_is_waited_for() -> None:
    target = FakeTarget(says(TEXT))
    first = FakeTarget(aborts(grpc.StatusCode.UNAVAILABLE, 5))
    try:
        directory = Directory([await first.start(), NoTarget("none"), NoTarget("none"), await target.start()])
        async with serve(directory) as served:
            await check_whole(await within(served.client.complete("x")))
    finally:
        await target.stop()
        await first.stop()


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT])
async def test_an_error_of_the_reply_itself_is_not_carried_to_other_targets(code: grpc.StatusCode) -> None:
    async with gateway(aborts(code, 3), says(TEXT)) as served:
        with pytest.raises(
            ServerFault if code is grpc.StatusCode.INTERNAL else InvalidRequest, match="as told"
        ) as failed:
            await within(served.client.complete("x"))
        assert failed.value.code is code
        assert not served.targets[1].requests


async def test_a_target_with_another_model_does_not_go_on_with_the_reply() -> None:
    infos = [model(), model(model="other")]
    async with gateway(aborts(grpc.StatusCode.UNAVAILABLE, 3), says(TEXT), infos=infos) as served:
        with pytest.raises(Unavailable, match="another model: 'other' instead of 'fake'"):
            await within(served.client.complete("x"))


async def test_a_target_with_another_tokenizer_is_refused() -> None:
    async with gateway(says(TEXT), info=model(tokenizer_fingerprint="f" * 64)) as served:
        with pytest.raises(ClientError, match="do not share a tokenizer") as refused:
            await within(served.client.complete("x"))
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("how", ["max_tokens", "end token", "stop string"])
async def test_a_target_that_dies_after_the_last_token_takes_nothing_away(how: str) -> None:
    """No other target is asked to decode what is complete."""

    async def dies(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield [*b"abc", 256] if how == "end token" else list(b"abc")
        yield grpc.StatusCode.UNAVAILABLE

    fields: dict[str, object] = {"max_tokens": {"max_tokens": 3}, "stop string": {"stop": ["c"]}}.get(how, {})  # type: ignore[assignment]
    async with gateway(dies, says(TEXT)) as served:
        reply = await within(served.client.complete("x", **fields))
        assert reply.text == ("ab" if how == "stop string" else "abc")
        assert reply.finish.reason == ("length" if how == "max_tokens" else "stop")
        assert not served.targets[1].requests


async def test_statistics_of_the_last_target_are_reported() -> None:
    async with gateway(says(TEXT, 1, finish(STOP, rounds=7, drafted=20, accepted=12))) as served:
        speculation = (await within(served.client.complete("x"))).finish.speculation
    assert (speculation.rounds, speculation.drafted, speculation.accepted) == (7, 20, 12)


def relaxes(*costs: tuple[int, float], end: Step) -> Script:
    """One token a message behind those delivered, with (relaxed tokens, deviation) of the reply so far; then `end`."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        done = len(bytes_to_ints(request.delivered_tokens, "delivered"))
        for index, (relaxed, spent) in enumerate(costs):
            token = ints_to_bytes(TEXT[done + index : done + index + 1])
            yield target_pb2.DecodeResponse(tokens=token, relaxed_tokens=relaxed, deviation_spent=spent)
        yield end

    return script


async def test_what_relaxations_cost_goes_along_to_the_next_target() -> None:
    """The newest of it; the third target learns what the second had been told, since that one added nothing."""
    lost = grpc.StatusCode.UNAVAILABLE
    first = relaxes((1, 0.25), (3, 0.75), end=lost)
    last = relaxes((4, 1.5), end=finish(STOP, rounds=1, accepted=1, relaxed_tokens=4, deviation_spent=1.5))
    async with gateway(first, relaxes(end=lost), last, max_failovers=2) as served:
        reply = await within(served.client.complete("x", temperature=1.0))
        asked = [target.requests[0] for target in served.targets]
    assert [(request.relaxed_tokens, request.deviation_spent) for request in asked] == [(0, 0), (3, 0.75), (3, 0.75)]
    assert list(reply.token_ids) == TEXT[:3]
    assert (reply.finish.speculation.relaxed_tokens, reply.finish.speculation.deviation_spent) == (4, 1.5)


async def test_the_whole_cost_is_reported_where_the_last_target_could_not_say_it() -> None:
    """It died after the last token."""
    async with gateway(relaxes((0, 0.0), (2, 0.5), end=grpc.StatusCode.UNAVAILABLE), says(TEXT)) as served:
        speculation = (await within(served.client.complete("x", max_tokens=2))).finish.speculation
        assert not served.targets[1].requests
    assert (speculation.relaxed_tokens, speculation.deviation_spent) == (2, 0.5)


async def test_a_target_is_described_once_in_its_life() -> None:
    async with gateway(says(TEXT)) as served:
        target = served.targets[0]
        served.directory.leases = [target.lease, target.lease, TargetLease(target.address, "another life")]
        for described in (1, 1, 2, 2):
            await check_whole(await within(served.client.complete("x")))
            assert target.described == described


async def test_a_target_restarted_at_the_same_address_serves_at_once() -> None:
    async with gateway(says(TEXT)) as served:
        old = served.targets[0]
        await check_whole(await within(served.client.complete("x")))
        await old.stop()
        new = FakeTarget(says(TEXT))
        served.targets.append(new)
        await new.start(port=int(old.address.rpartition(":")[2]))
        try:
            served.directory.leases = [TargetLease(new.address, "another life")]
            await check_whole(await within(served.client.complete("x")))
            assert len(new.requests) == 1
        finally:
            await new.stop()
