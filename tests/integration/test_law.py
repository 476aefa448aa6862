"""The law through the real services: every legal combination on a table model, target and drafter over gRPC.

Noise is by seed and position, so the draws of a stream are independent and every token counts: 12 000 draws on 25 cells
(a table of 5 tokens), G-test with a false alarm once in 1e6 per combination.
"""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.runtime.costs import PassCosts
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.v1 import common_pb2
from support.table_proposer import TableProposer
from target.wire import Directory, collect, message, speculation, target

Stats = common_pb2.SpeculationStats
VOCAB, STREAMS, LENGTH = 5, 12, 1000
TARGET = np.random.default_rng(8).dirichlet([0.8] * VOCAB, size=VOCAB)
DRAFTER = 0.5 * TARGET + 0.5 * np.random.default_rng(9).dirichlet([0.8] * VOCAB, size=VOCAB)
RANKED, COUPLED, SAMPLED = common_pb2.PROPOSAL_RANKED, common_pb2.PROPOSAL_COUPLED, common_pb2.PROPOSAL_SAMPLED
DRAFT, RETAIN = common_pb2.SELECTION_RULE_DRAFT, common_pb2.SELECTION_RULE_RETAIN
RERANK, DRAW_FIRST = common_pb2.SELECTION_RULE_RERANK, common_pb2.SELECTION_RULE_DRAW_FIRST
TREE, NEVER = common_pb2.WAIT_MODE_TREE, common_pb2.WAIT_MODE_NEVER
LEGAL = [
    *itertools.product([RANKED, COUPLED], [DRAFT, RETAIN, RERANK, DRAW_FIRST]),
    *itertools.product([SAMPLED], [DRAFT, DRAW_FIRST]),
]


async def transitions(seed: int, streams: int, **fields: object) -> tuple[NDArray[np.int64], Stats]:
    """[V, V] counts of token pairs over the streams, and the statistics of one."""
    counts = np.zeros((VOCAB, VOCAB), dtype=np.int64)
    drafter = DrafterServer(DrafterConfig(), TableProposer(DRAFTER))
    directory = Directory(await drafter.start())
    runner = ToyRunner(TARGET, context_length=LENGTH + 80, pages=2000)
    runner.costs = PassCosts({1: 1e-4, 32: 1.5e-4, 256: 4e-4}) if fields.get("auto_budget") else runner.costs
    config = {"max_sessions": streams, "never_idle_sessions": streams, "draft_deadline_ms": 10_000.0}
    try:
        async with target(runner, directory, ToyTokenizer.numbered(VOCAB), **config) as served:
            await served.drafter_state("ready")

            async def stream(number: int) -> Stats:
                sampling = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=seed + number)
                asked = speculation(5, **fields)
                if asked.auto_budget:
                    asked.ClearField("budget")
                wanted = message([0], LENGTH, sampling=sampling, speculation=asked)
                tokens, finish = await collect(served.stub.Decode(wanted))
                assert len(tokens) == LENGTH
                np.add.at(counts, ([0, *tokens[:-1]], tokens), 1)
                return finish.speculation

            found = await asyncio.gather(*(stream(number) for number in range(streams)))
    finally:
        await drafter.stop(5)
    return counts, found[0]


def p_value(counts: NDArray[np.int64]) -> float:
    """Of the G-test over all rows of the table."""
    expected = TARGET * counts.sum(axis=1, keepdims=True)
    seen = counts > 0
    statistic = 2 * float(np.sum(counts[seen] * np.log(counts[seen] / expected[seen])))
    return float(stats.chi2.sf(statistic, VOCAB * (VOCAB - 1)))


@pytest.mark.parametrize(
    ("proposal", "selection", "wait"),
    [*((*each, TREE) for each in LEGAL), (COUPLED, DRAFT, NEVER), (SAMPLED, DRAW_FIRST, NEVER)],
)
async def test_the_law_is_the_targets(proposal: int, selection: int, wait: int) -> None:
    counts, found = await transitions(100, STREAMS, proposal=proposal, selection=selection, wait=wait)
    assert counts.sum() == STREAMS * LENGTH
    assert p_value(counts) > 1e-6
    assert found.accepted > 10 or wait == NEVER, "a target this fast may be past every tree that it does not wait for"
    assert found.relaxed_tokens == 0


@pytest.mark.parametrize(("proposal", "selection"), [(COUPLED, DRAFT), (SAMPLED, DRAFT), (SAMPLED, DRAW_FIRST)])
async def test_the_law_is_the_targets_where_it_chooses_the_budget(proposal: int, selection: int) -> None:
    counts, found = await transitions(200, STREAMS, proposal=proposal, selection=selection, wait=TREE, auto_budget=True)
    assert p_value(counts) > 1e-6
    assert len(found.budgets) > 1
    assert sum(found.budgets.values()) <= found.rounds


@pytest.mark.parametrize(("proposal", "selection"), [each for each in LEGAL if each[0] != COUPLED])
async def test_a_nucleus_changes_the_law_and_its_limits_bring_it_back(proposal: int, selection: int) -> None:
    """A wide nucleus is seen by the same test; one whose deviation is bounded by 0 is the exact rule."""
    wide = common_pb2.NucleusVerification(mass=0.9)
    counts, found = await transitions(7, 6, proposal=proposal, selection=selection, wait=TREE, nucleus=wide)
    assert p_value(counts) < 1e-6
    assert found.relaxed_tokens > 20
    assert found.deviation_spent > 5
    none = common_pb2.NucleusVerification(mass=0.9, max_deviation=0.0)
    counts, found = await transitions(7, 6, proposal=proposal, selection=selection, wait=TREE, nucleus=none)
    assert p_value(counts) > 1e-6
    assert found.relaxed_tokens == 0
    assert found.deviation_spent == 0
    assert found.limits_applied["max_deviation"] > 20


async def test_limits_hold_for_each_reply() -> None:
    for nucleus, field, most in (
        (common_pb2.NucleusVerification(mass=0.9, max_relaxations=7), "relaxed_tokens", 7),
        (common_pb2.NucleusVerification(mass=0.9, max_deviation=3.5), "deviation_spent", 3.5),
        (common_pb2.NucleusVerification(mass=0.9, max_deviation_per_token=0.01), "deviation_spent", 0.01 * LENGTH),
    ):
        _, found = await transitions(3, 2, proposal=RANKED, selection=DRAW_FIRST, wait=TREE, nucleus=nucleus)
        assert 0 < getattr(found, field) <= most + 1e-9
        assert found.limits_applied
