"""The target with the drafter service itself."""

from __future__ import annotations

import asyncio

import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.scripted import OracleProposer
from paceline.drafter.server import DrafterServer
from paceline.runtime.toy import ToyRunner
from paceline.v1 import common_pb2
from target.rig import Scene, plain, random_table, request, sampled
from target.wire import Directory, collect, message, speculation, target, until

VOCAB = 32
TABLE = random_table(VOCAB, seed=40, sharpness=9.0)
PROMPT = [3, 9, 3, 9]


@pytest.mark.parametrize("wrong", [False, True])
async def test_oracle_and_wrong_drafters(wrong: bool) -> None:
    expected = plain(ToyRunner(TABLE), request(PROMPT, 101))
    drafter = DrafterServer(DrafterConfig(), OracleProposer({tuple(PROMPT): expected}, wrong=wrong))
    address = await drafter.start()
    try:
        async with target(ToyRunner(TABLE), Directory(address), draft_deadline_ms=5000.0) as served:
            await served.drafter_state("ready")
            tokens, finish = await collect(served.stub.Decode(message(PROMPT, 101, budget=4)))
            await served.idle()

            async def sessions() -> tuple[int, int]:
                return drafter.sessions, drafter.streams

            await until(sessions, (0, 1))
    finally:
        await drafter.stop(0.0)
    assert tokens == expected
    assert not finish.speculation.fallbacks
    assert finish.speculation.rounds == (101 if wrong else 21)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_suffix_drafter_with_ranked_and_coupled_trees(temperature: float) -> None:
    """Two replies each, so that the second is drafted from what the first has taught."""
    expected = plain(ToyRunner(TABLE), request(PROMPT, 200, sampling=sampled(temperature, 6)))
    drafter = DrafterServer(DrafterConfig())
    address = await drafter.start()
    params = common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=6)
    proposals = [common_pb2.PROPOSAL_RANKED] + [common_pb2.PROPOSAL_COUPLED] * (temperature > 0)
    try:
        async with target(ToyRunner(TABLE), Directory(address), draft_deadline_ms=5000.0) as served:
            await served.drafter_state("ready")
            for proposal in [each for each in proposals for _ in range(2)]:
                wish = speculation(8, proposal=proposal)
                wanted = message(PROMPT, 200, sampling=params, speculation=wish)
                tokens, finish = await collect(served.stub.Decode(wanted))
                assert tokens == expected
                assert not finish.speculation.fallbacks
            assert finish.speculation.accepted > 100, "it has seen this very reply"
    finally:
        await drafter.stop(0.0)


async def test_the_drafter_is_replaced_during_a_reply() -> None:
    """Gone without a word, another one somewhere else: same tokens, drafting goes on."""
    expected = plain(ToyRunner(TABLE), request(PROMPT, 300))
    servers = [DrafterServer(DrafterConfig(), OracleProposer({tuple(PROMPT): expected})) for _ in range(2)]
    directory = Directory(await servers[0].start())
    scene = Scene(20, 50)
    async with target(ToyRunner(TABLE, before_execute=scene), directory, draft_deadline_ms=60_000.0) as served:
        await served.drafter_state("ready")
        call = asyncio.create_task(collect(served.stub.Decode(message(PROMPT, 300, budget=2))))

        async def replace() -> None:
            await servers[0].stop(0.0)
            directory.address = None
            await served.drafter_state("absent")

        async def back() -> None:
            directory.address = await servers[1].start()
            await served.drafter_state("ready")

        await scene.act(replace)
        await scene.act(back)
        tokens, finish = await call
        await servers[1].stop(0.0)
    assert tokens == expected
    assert set(finish.speculation.fallbacks) <= {"lost", "absent"}
    assert 25 <= sum(finish.speculation.fallbacks.values()) <= 35
    assert finish.speculation.accepted > 150
