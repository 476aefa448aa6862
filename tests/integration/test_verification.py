"""Verification of requests side by side: no rule leaks, and what a drafter hands over is what it drew from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from paceline.drafter.config import DrafterConfig
from paceline.drafter.proposer import Growth, Want
from paceline.drafter.server import DrafterServer
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.speculation.nucleus import Nucleus
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rejection import recursion
from paceline.speculation.rows import Row, nucleus
from paceline.speculation.tree import DraftTree
from paceline.v1 import common_pb2
from support.table_proposer import TableProposer
from target.rig import plain, random_table, request, running, sampled
from target.wire import Directory, collect, message, speculation, target

VOCAB = 16
TABLE = random_table(VOCAB, seed=4, sharpness=2.5)


def second_best_or_outside(context: list[int], budget: int) -> DraftTree:
    """By turns the second most probable token, which lies in the nucleus, and the least probable one."""
    order = np.argsort(-TABLE[context[-1]])
    return DraftTree.build([int(order[1] if len(context) % 2 else order[-1])], [-1], [-0.5])


def test_a_relaxed_request_leaves_the_others_of_its_batch_alone() -> None:
    """Case B9: A exact and greedy, B relaxed, C exact and sampled, D relaxed by a nucleus of one token."""
    exact = request([1], 200)
    cold = request([3], 200, sampling=sampled(1.0, 8))
    relaxed = request([2], 200, nucleus=Nucleus(0.9))
    narrow = request([2], 200, nucleus=Nucleus(1e-9))
    with running(ToyRunner(TABLE), second_best_or_outside, cost_aware=False) as rig:
        sinks = [rig.submit(each)[1] for each in (exact, relaxed, cold, narrow)]
        ends = [sink.wait().stats for sink in sinks]
    replies = [sink.all_tokens for sink in sinks]
    assert replies[0] == plain(ToyRunner(TABLE), exact)
    assert replies[2] == plain(ToyRunner(TABLE), cold)
    assert replies[3] == plain(ToyRunner(TABLE), request([2], 200)) != replies[1]
    for before, token in zip([2, *replies[1]], replies[1], strict=False):
        assert token in nucleus(Row.from_dense(TABLE[before]), 0.9).token_ids
    assert [each.nucleus for each in ends] == [False, True, False, True]
    assert ends[1].relaxed > 20
    assert [each.relaxed for each in ends] == [0, ends[1].relaxed, 0, 0]


class TopTwo(TableProposer):
    """Draws from the two most probable tokens only; `honest` hands over what it drew from, else the whole row."""

    def __init__(self, table: NDArray[np.float64], *, honest: bool) -> None:
        super().__init__(table)
        self._whole = self._rows
        self._rows = [ProposalRow.of(self._ids, row, 2) for row in table]
        self._honest = honest

    def propose(self, wants: list[Want]) -> list[Growth]:
        found = super().propose(wants)
        if self._honest:
            return found
        whole = self._whole[0]  # all rows are alike
        return [
            Growth(
                DraftTree(
                    each.tree.tokens,
                    each.tree.parents,
                    each.tree.log_probs,
                    tuple(None if row is None else whole for row in each.tree.rows or ()),
                )
            )
            for each in found
        ]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("honest", [True, False])
async def test_what_was_drawn_from_is_what_the_ratio_is_taken_with(temperature: float, honest: bool) -> None:
    """Case B1: target (.1 .2 .3 .4), the drafter draws from the top 2 of (.4 .3 .2 .1). False alarm 1e-6.

    A drafter that hands over another row than it drew from is refused, and the law stays the target's.
    """
    probs = np.asarray([0.1, 0.2, 0.3, 0.4])
    served = probs ** (1 / temperature) / (probs ** (1 / temperature)).sum()
    drafter = DrafterServer(DrafterConfig(), TopTwo(np.tile(probs[::-1], (4, 1)), honest=honest))
    runner = ToyRunner(np.tile(probs, (4, 1)), context_length=4096)
    try:
        directory = Directory(await drafter.start())
        async with target(runner, directory, ToyTokenizer.numbered(4), draft_deadline_ms=10_000.0) as service:
            await service.drafter_state("ready")
            sampling = common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=6)
            wish = speculation(3, proposal=common_pb2.PROPOSAL_SAMPLED)
            tokens, finish = await collect(service.stub.Decode(message([0], 4000, sampling=sampling, speculation=wish)))
    finally:
        await drafter.stop(5)
    found = stats.power_divergence(np.bincount(tokens, minlength=4), served * len(tokens), lambda_="log-likelihood")
    assert found.pvalue > 1e-6
    assert finish.speculation.verification == "exact"
    if honest:
        assert not finish.speculation.fallbacks
        assert finish.speculation.accepted > 500
    else:
        assert finish.speculation.fallbacks["invalid"] > 500


def test_a_row_cut_to_its_top_and_rounded_is_still_the_row_that_is_tested_against() -> None:
    """Case B1, second run: 50 000 tokens nearly alike, 256 of them travel, as float16. The law of the token is p."""
    random = np.random.default_rng(2)
    target_row = Row.from_dense(random.dirichlet([50.0] * 50_000))
    draft = random.dirichlet([50.0] * 50_000)
    cut = ProposalRow.of(np.arange(50_000), draft.astype(np.float16).astype(np.float64), 256)
    assert cut is not None
    assert len(cut) == 256
    drawn = cut.weights.astype(np.float64) / cut.weights.sum(dtype=np.float64)
    law = np.zeros(50_000)
    for token, prob in zip(cut.token_ids.tolist(), drawn.tolist(), strict=True):
        (accepted,), residual = recursion(target_row, cut, [token])
        law[token] += prob * accepted
        law[residual.token_ids] += prob * (1 - accepted) * residual.probs
    assert np.abs(law - target_row.dense(50_000)).max() < 1e-12
