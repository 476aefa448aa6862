"""Target and drafter over real gRPC: dead, hung, empty-handed, lying, back again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from paceline.rpc.arrays import ints_to_bytes
from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree
from paceline.v1 import common_pb2, draft_pb2, target_pb2
from target import drafters
from target.rig import PATIENCE_S, Scene, plain, random_table, request, sampled
from target.wire import Directory, Served, WireDrafter, collect, message, serving, target, until

VOCAB = 32
TABLE = random_table(VOCAB, seed=33)
PROMPT = [5, 6, 7]
COUNT = 400
EXPECTED = plain(ToyRunner(TABLE), request(PROMPT, COUNT))


def right(context: list[int], budget: int) -> DraftTree:
    return drafters.oracle(PROMPT, EXPECTED)(context, min(budget, 3))


async def start(served: Served, budget: int = 3) -> asyncio.Task:
    await served.drafter_state("ready")
    return asyncio.create_task(collect(served.stub.Decode(message(PROMPT, COUNT, budget=budget))))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["oracle", "bushy", "random", "wrong"])
async def test_drafted_replies_equal_plain_ones(kind: str, temperature: float) -> None:
    expected = plain(ToyRunner(TABLE), request(PROMPT, 100, sampling=sampled(temperature, 3)))
    propose = {
        "oracle": drafters.oracle(PROMPT, expected),
        "bushy": drafters.bushy(PROMPT, expected, VOCAB, 1),
        "random": drafters.random_trees(VOCAB, 1),
        "wrong": drafters.accepting(PROMPT, expected, VOCAB, 0),
    }[kind]
    params = common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=3)
    async with serving(WireDrafter(propose)) as address, target(ToyRunner(TABLE), Directory(address)) as served:
        await served.drafter_state("ready")
        tokens, finish = await collect(served.stub.Decode(message(PROMPT, 100, sampling=params)))
        info = (await served.stub.GetTargetInfo(target_pb2.GetTargetInfoRequest())).model
        status = await served.stub.GetTargetStatus(target_pb2.GetTargetStatusRequest())
    assert tokens == expected
    assert not finish.speculation.fallbacks
    assert finish.speculation.rounds + finish.speculation.accepted == 100
    assert info.proposer == "wire"
    assert (len(status.drafters), status.target.drafter_address) == (1, address)
    if kind == "oracle":
        assert finish.speculation.rounds == 12


async def test_a_killed_drafter_and_one_that_comes_back() -> None:
    scene, directory = Scene(20, 60), Directory()
    async with target(ToyRunner(TABLE, before_execute=scene), directory, draft_deadline_ms=60_000.0) as served:
        async with serving(WireDrafter(right)) as directory.address:
            call = await start(served)
            assert await asyncio.to_thread(scene.held.acquire, timeout=PATIENCE_S)
        directory.address = None
        await served.drafter_state("absent")
        scene.go.release()

        async with serving(WireDrafter(right)) as address:

            async def back() -> None:
                directory.address = address
                await served.drafter_state("ready")

            await scene.act(back)
            tokens, finish = await call
    assert tokens == EXPECTED
    assert set(finish.speculation.fallbacks) <= {"lost", "absent"}
    assert 35 <= sum(finish.speculation.fallbacks.values()) <= 45
    assert finish.speculation.accepted > 200


async def test_a_hung_drafter_costs_three_deadlines_and_drafting_resumes() -> None:
    scene, drafter = Scene(20, 80), WireDrafter(right)
    async with (
        serving(drafter) as address,
        target(
            ToyRunner(TABLE, before_execute=scene), Directory(address), draft_deadline_ms=300.0, probe_ms=60_000.0
        ) as served,
    ):
        call = await start(served)

        async def hang() -> None:
            drafter.awake.clear()

        async def wake() -> None:
            assert (await served.status()).drafter_state == "suspended"
            drafter.awake.set()
            await until(answered, True)

        async def answered() -> bool:
            return bool(served.server.engine.inbox._events)

        await scene.act(hang)
        await scene.act(wake)
        tokens, finish = await call
        await served.drafter_state("ready")
    assert tokens == EXPECTED
    assert finish.speculation.fallbacks["late"] == 3
    assert finish.speculation.fallbacks["suspended"] >= 40
    assert finish.speculation.accepted > 100


RUBBISH = {
    "a loop": draft_pb2.DraftTree(tokens=ints_to_bytes([1, 2]), parents=ints_to_bytes([1, 0])),
    "a parent after its child": draft_pb2.DraftTree(tokens=ints_to_bytes([1, 2]), parents=ints_to_bytes([1, -1])),
    "an id outside the vocabulary": draft_pb2.DraftTree(tokens=ints_to_bytes([VOCAB]), parents=ints_to_bytes([-1])),
    "a negative id": draft_pb2.DraftTree(tokens=ints_to_bytes([-3]), parents=ints_to_bytes([-1])),
    "too many nodes": draft_pb2.DraftTree(
        tokens=ints_to_bytes(np.arange(200) % VOCAB), parents=ints_to_bytes(range(-1, 199))
    ),
    "half an int": draft_pb2.DraftTree(tokens=b"abc", parents=b""),
}


@pytest.mark.parametrize("kind", list(RUBBISH))
async def test_rubbish_is_refused_and_counted(kind: str) -> None:
    questions = iter(range(10_000))

    def propose(context: list[int], budget: int):
        if next(questions) % 2 == 0:
            return right(context, budget)
        reply = draft_pb2.SessionReply(tree=RUBBISH[kind])
        reply.tree.base_length = len(context)
        return reply

    async with serving(WireDrafter(propose)) as address, target(ToyRunner(TABLE), Directory(address)) as served:
        tokens, finish = await (await start(served))
    assert tokens == EXPECTED
    assert set(finish.speculation.fallbacks) == {"invalid"}
    assert finish.speculation.fallbacks["invalid"] > 50
    assert finish.speculation.accepted > 150


async def test_empty_trees_and_replies_for_other_sessions() -> None:
    questions = iter(range(10_000))

    def propose(context: list[int], budget: int):
        match next(questions) % 8:
            case 0:
                return DraftTree.empty()
            case 1:
                return draft_pb2.SessionReply(
                    session=4711, tree=draft_pb2.DraftTree(base_length=len(context), tokens=b"", parents=b"")
                )
            case _:
                return right(context, budget)

    async with (
        serving(WireDrafter(propose)) as address,
        target(ToyRunner(TABLE), Directory(address), draft_deadline_ms=50.0, suspend_after=1000) as served,
    ):
        tokens, finish = await (await start(served))
        stale = served.server.engine.counters.totals().stale_frames
    assert tokens == EXPECTED
    assert set(finish.speculation.fallbacks) == {"late"}, "an empty tree is no fallback"
    assert finish.speculation.fallbacks["late"] >= stale > 5
    assert finish.speculation.accepted > 200


async def test_sessions_at_the_drafter_end_with_their_streams() -> None:
    drafter = WireDrafter(drafters.random_trees(VOCAB, 5))
    async with serving(drafter) as address, target(ToyRunner(TABLE), Directory(address), max_sessions=8) as served:
        await served.drafter_state("ready")
        calls = [served.stub.Decode(message([k], 1000)) for k in range(8)]
        for call in calls:
            await call.read()
        for call in calls[::2]:
            call.cancel()
        for call in calls[1::2]:
            await collect(call)
        await served.idle()

        async def sessions() -> int:
            return len(drafter.contexts)

        await until(sessions, 0)
        assert drafter.streams == 1
    await until(drafter.stream_count, 0)
