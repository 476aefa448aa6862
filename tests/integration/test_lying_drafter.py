"""A drafter that lies: same tokens, no error, counted, and drafting again once it tells the truth (case E4 c-e)."""

from __future__ import annotations

import asyncio

import pytest

from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree
from paceline.v1 import common_pb2
from support.lying_drafter import GARBAGE, LIES, LyingDrafter, serving_lies
from target import drafters
from target.rig import plain, random_table, request, sampled
from target.wire import Directory, Served, collect, message, speculation, target, until

VOCAB = 32
TABLE = random_table(VOCAB, seed=33)
PROMPT = [5, 6, 7]
COUNT = 120
PARAMS = common_pb2.SamplingParams(temperature=0.9, top_k=0, top_p=1.0, seed=3)
EXPECTED = plain(ToyRunner(TABLE), request(PROMPT, COUNT, sampling=sampled(0.9, 3)))
LATE = {"late", "suspended"}  # what was said was for nobody
COUNTED = {  # the others are "invalid"
    "an empty tree": set(),  # the proposer has nothing to say
    "a length behind": LATE,  # as good as a tree that comes late
    "another session": LATE,
    "another epoch": LATE,
    GARBAGE: {"lost", "late"},
}


async def reply(served: Served):
    return await collect(served.stub.Decode(message(PROMPT, COUNT, budget=3, sampling=PARAMS)))


async def resumed(served: Served) -> bool:
    """Whether a whole reply was drafted; its tokens are right either way."""
    tokens, finish = await reply(served)
    assert tokens == EXPECTED
    return not finish.speculation.fallbacks and finish.speculation.accepted > COUNT // 2


@pytest.mark.parametrize("lie", [*LIES, GARBAGE])
async def test_a_lie_costs_nothing_but_the_draft(lie: str) -> None:
    drafter = LyingDrafter(drafters.oracle(PROMPT, EXPECTED))
    counted = COUNTED.get(lie, {"invalid"})
    deadline_ms = 100.0 if counted == LATE else 5000.0  # a slow machine is not to be taken for a lie
    async with (
        serving_lies(drafter) as address,
        target(ToyRunner(TABLE), Directory(address), draft_deadline_ms=deadline_ms, probe_ms=20.0) as served,
    ):
        await served.drafter_state("ready")
        await until(lambda: resumed(served), True)
        drafter.lie = lie
        tokens, finish = await reply(served)
        assert tokens == EXPECTED
        assert drafter.lies_told > 0
        assert finish.speculation.fallbacks.keys() <= counted
        assert bool(finish.speculation.fallbacks) == bool(counted)
        assert finish.speculation.accepted == 0
        drafter.lie = None
        await until(lambda: resumed(served), True)
        await served.idle()
        totals = (await served.status()).fallbacks
        assert all(totals[reason] >= count for reason, count in finish.speculation.fallbacks.items())


async def test_trees_of_other_sessions_are_as_harmless_as_they_are_wrong() -> None:
    """Answers crossed between live sessions of one stream: valid in form, drafted for somebody else's text."""
    prompts = [[seed, *PROMPT] for seed in range(4)]
    wanted = [request(prompt, COUNT, sampling=sampled(0.9, seed)) for seed, prompt in enumerate(prompts)]
    expected = [plain(ToyRunner(TABLE), each) for each in wanted]
    oracles = [drafters.oracle(prompt, tokens) for prompt, tokens in zip(prompts, expected, strict=True)]

    def propose(context: list[int], budget: int) -> DraftTree:
        return oracles[context[0]](context, budget)

    drafter = LyingDrafter(propose)
    drafter.crossed = True
    async with (
        serving_lies(drafter) as address,
        target(ToyRunner(TABLE), Directory(address), draft_deadline_ms=100.0, probe_ms=20.0) as served,
    ):
        await served.drafter_state("ready")

        async def one(seed: int) -> list[int]:
            params = common_pb2.SamplingParams(temperature=0.9, top_k=0, top_p=1.0, seed=seed)
            return (await collect(served.stub.Decode(message(prompts[seed], COUNT, budget=3, sampling=params))))[0]

        assert await asyncio.gather(*(one(seed) for seed in range(4))) == expected
        assert drafter.lies_told > 20
        drafter.crossed = False
        await served.idle()
        assert await one(1) == expected[1]

        async def held() -> int:
            return len(drafter.contexts)

        await until(held, 0)


async def test_a_tree_as_large_as_was_asked_for_is_no_lie() -> None:
    """A target that prunes asks for three times its budget; a chain of that many nodes is as deep."""
    drafter = LyingDrafter(drafters.oracle(PROMPT, EXPECTED))
    async with (
        serving_lies(drafter) as address,
        target(ToyRunner(TABLE), Directory(address), budget=2, max_budget=2, draft_deadline_ms=5000.0) as served,
    ):
        await served.drafter_state("ready")
        wish = speculation(2, selection=common_pb2.SELECTION_RULE_RERANK)
        tokens, finish = await collect(served.stub.Decode(message(PROMPT, COUNT, sampling=PARAMS, speculation=wish)))
    assert tokens == EXPECTED
    assert not finish.speculation.fallbacks
    assert finish.speculation.accepted > COUNT // 2
