"""A drafter process that dies, hangs and comes back in mid-stream: same tokens, counted, resumed (case E4 a, b, e)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from integration.drafter_process import DrafterProcess
from paceline.runtime.toy import ToyRunner
from paceline.v1 import common_pb2, target_pb2
from target.rig import Scene, counting_table, plain, request, sampled
from target.wire import Directory, Served, WireDrafter, collect, message, serving, target, until

VOCAB = 16
TABLE = counting_table(VOCAB, sure=0.9)
PROMPT = [1, 2, 3]
COUNT = 400
PARAMS = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=77)
EXPECTED = plain(ToyRunner(TABLE), request(PROMPT, COUNT, sampling=sampled(1.0, 77)))
FIRST, SECOND = 20, 70  # passes before which the world changes


@pytest.fixture
async def drafter() -> AsyncIterator[DrafterProcess]:
    process = await DrafterProcess.start()
    try:
        yield process
    finally:
        await process.end()


spare = drafter  # another one, under a name of its own


def wanted() -> target_pb2.DecodeRequest:
    return message(PROMPT, COUNT, budget=3, sampling=PARAMS)


async def drafted_again(served: Served) -> None:
    """Returns once a reply is drafted from end to end; the tokens are right all the while."""

    async def look() -> bool:
        tokens, finish = await collect(served.stub.Decode(wanted()))
        assert tokens == EXPECTED
        return not finish.speculation.fallbacks and finish.speculation.accepted > COUNT // 4

    await until(look, True)


async def test_a_killed_drafter_and_another_one_within_one_reply(
    drafter: DrafterProcess, spare: DrafterProcess
) -> None:
    scene, directory = Scene(FIRST, SECOND), Directory(drafter.address)
    accepted: list[int] = []
    async with target(ToyRunner(TABLE, before_execute=scene), directory, draft_deadline_ms=60_000.0) as served:
        await served.drafter_state("ready")
        call = asyncio.create_task(collect(served.stub.Decode(wanted())))

        async def kill() -> None:
            directory.address = None
            await drafter.kill()
            await served.drafter_state("absent")
            accepted.append((await served.status()).accepted)

        async def back() -> None:
            accepted.append((await served.status()).accepted)
            directory.address = spare.address
            await served.drafter_state("ready")

        await scene.act(kill)
        await scene.act(back)
        tokens, finish = await call
        assert tokens == EXPECTED
        assert finish.speculation.fallbacks.keys() <= {"lost", "absent"}
        assert SECOND - FIRST - 3 <= sum(finish.speculation.fallbacks.values()) <= SECOND - FIRST + 3
        before, after = accepted
        assert after - before <= 3, "no tree but one that had come already"
        assert finish.speculation.accepted - after > 50, "drafted again, from the whole context"
        assert (await served.status()).drafter_address == spare.address


async def test_a_stopped_drafter_is_not_waited_for_and_is_used_again(drafter: DrafterProcess) -> None:
    scene = Scene(FIRST, SECOND)
    async with target(
        ToyRunner(TABLE, before_execute=scene), Directory(drafter.address), draft_deadline_ms=500.0, probe_ms=30.0
    ) as served:
        await served.drafter_state("ready")
        call = asyncio.create_task(collect(served.stub.Decode(wanted())))

        async def stop() -> None:
            drafter.signal(signal.SIGSTOP)

        async def back() -> None:
            late.append((await served.status()).fallbacks["late"])
            drafter.signal(signal.SIGCONT)

        late: list[int] = []
        await scene.act(stop)
        await scene.act(back)
        tokens, finish = await call
        assert tokens == EXPECTED
        assert late[0] <= 3, "three deadlines, and no more"
        assert finish.speculation.fallbacks.keys() <= {"late", "suspended", "lost"}
        assert sum(finish.speculation.fallbacks.values()) >= SECOND - FIRST - 3
        await drafted_again(served)


async def test_silence_of_a_stopped_drafter_is_noticed_by_its_pings(drafter: DrafterProcess) -> None:
    """Its kernel answers and it does not: pings end the link, and it comes back by itself."""
    async with target(
        ToyRunner(TABLE), Directory(drafter.address), draft_deadline_ms=500.0, probe_ms=30.0, connect_timeout_s=0.2
    ) as served:
        await drafted_again(served)
        drafter.signal(signal.SIGSTOP)

        async def lost() -> bool:
            tokens, finish = await collect(served.stub.Decode(wanted()))
            assert tokens == EXPECTED
            return finish.speculation.fallbacks.keys() == {"lost"}

        await until(lost, True)
        drafter.signal(signal.SIGCONT)
        await drafted_again(served)
        await served.idle()


async def asked_while_it_breaks() -> str:
    """State of the drafter as the target tells it, asked of a drafter whose stream ends before it answers."""
    asked = asyncio.Event()

    class Slow(WireDrafter):
        async def GetDrafterStatus(self, request, context):  # noqa: N802
            if self.streams:
                asked.set()
                await asyncio.Event().wait()
            return await super().GetDrafterStatus(request, context)

    drafter = Slow(lambda context, budget: None)
    async with serving(drafter) as address, target(ToyRunner(TABLE), Directory(address)) as served:
        await until(drafter.stream_count, 1)
        answer = asyncio.create_task(served.status())
        await asked.wait()
        drafter.end_streams.set()
        return (await asyncio.wait_for(answer, 2)).drafter_state


async def test_a_link_that_breaks_under_a_status_call_does_not_hold_it() -> None:
    assert await asked_while_it_breaks() != "ready"
