"""The law of what is emitted, with drafters of every kind: G-tests at false-alarm 1e-6 on at most 16 cells.

Noise is by seed and position, so the draws of one stream are independent and many tokens of few streams count.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.tree import DraftTree
from paceline.target.request import DraftWish
from target import drafters
from target.rig import Propose, plain, request, running, sampled

STREAMS, LENGTH = 5, 4000  # 20 000 draws
CHI_SQUARE_1E6 = {1: 23.93, 3: 30.66, 12: 50.83}  # quantile of 1 - 1e-6 by degrees of freedom


def g_statistic(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    """2 * sum over cells of observed * log(observed / expected)."""
    expected = probs * counts.sum()
    seen = counts > 0
    return float(2 * np.sum(counts[seen] * np.log(counts[seen] / expected[seen])))


def streams(table: NDArray[np.float64], propose: Propose, budget: int) -> tuple[list[list[int]], list]:
    runner = ToyRunner(table, context_length=LENGTH + 8)
    with running(runner, propose, max_sessions=STREAMS) as rig:
        wanted = [request([0], LENGTH, budget=budget, sampling=sampled(1.0, seed)) for seed in range(STREAMS)]
        sinks = [rig.submit(each)[1] for each in wanted]
        for sink in sinks:
            sink.wait()
    return [[0, *sink.all_tokens] for sink in sinks], rig.records


def likely(context: list[int], budget: int) -> DraftTree:
    """Always the same bush, right often: tokens 3 and 2, each with 3 and 0 below."""
    return DraftTree.build([3, 2, 3, 0, 3, 0], [-1, -1, 0, 0, 1, 1]).first(budget)


@pytest.mark.parametrize("propose", [likely, drafters.random_trees(4, 3)], ids=["likely", "random"])
def test_transitions_follow_the_table(propose: Propose) -> None:
    table = np.random.default_rng(8).dirichlet([1.0] * 4, size=4)
    found, _ = streams(table, propose, budget=6)
    counts = np.zeros((4, 4), dtype=np.int64)
    for tokens in found:
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    assert counts.sum() == STREAMS * LENGTH
    statistic = sum(g_statistic(counts[token], table[token]) for token in range(4))
    assert statistic < CHI_SQUARE_1E6[12]


def test_a_drafter_that_draws_elsewhere_leaves_the_law_alone() -> None:
    """Target (.3 .7), the drafter proposes token 0 nine times out of ten: 30/70, not 51/49 nor 48/52."""
    probs = np.asarray([0.3, 0.7])
    generator = np.random.default_rng(4)

    def propose(context: list[int], budget: int) -> DraftTree:
        return DraftTree.chain([int(generator.random() < 0.1)])

    found, _ = streams(np.tile(probs, (2, 1)), propose, budget=1)
    counts = np.bincount(np.concatenate([tokens[1:] for tokens in found]), minlength=2)
    assert g_statistic(counts, probs) < CHI_SQUARE_1E6[1]
    assert g_statistic(counts, np.asarray([0.48, 0.52])) > CHI_SQUARE_1E6[1], "the test would not see the fault"


def test_the_token_after_a_fully_accepted_chain() -> None:
    """Next-token table (.05 .95), a chain of three ones: the bonus token is drawn from the row of the last node."""
    probs = np.asarray([0.05, 0.95])
    _, records = streams(np.tile(probs, (2, 1)), lambda context, budget: DraftTree.chain([1, 1, 1]), budget=3)
    bonus = [record.drawn for record in records if len(record.accepted) == 3]
    assert len(bonus) > 3000
    assert g_statistic(np.bincount(bonus, minlength=2), probs) < CHI_SQUARE_1E6[1]


def test_draws_of_a_sampled_request_are_not_what_a_drafter_may_have_learned() -> None:
    """A replay with the seed of a request that taught the drafter: a token that was seen there is drafted below, one
    that was not is drawn plainly. By the same noise, tokens would repeat themselves too rarely: .068, not .083.
    """
    table = np.full((12, 12), 1 / 12)
    wishes = [DraftWish(4, proposal=proposal) for proposal in (Proposal.RANKED, Proposal.SAMPLED)]
    taught, replay = (request([0], 50, sampling=sampled(1.0, 3), wish=wish) for wish in wishes)
    assert (taught.teaches, replay.teaches) == (True, False)
    same = np.equal(plain(ToyRunner(table), taught), plain(ToyRunner(table), replay))
    assert same.sum() < 15
