"""Laws under real noise: enumeration cannot see a number that is used twice, many seeds can (THEORY 7).

Each G-test has at most 25 cells and a false alarm of 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import stats

from paceline.speculation.choices import Choices, SeededChoices
from paceline.speculation.modes import Proposal, Selection, refusal
from paceline.speculation.noise import Purpose, exponential, noise_key, propose_seed, uniform
from paceline.speculation.nucleus import Nucleus
from paceline.speculation.proposal_row import ProposalRow, sibling_key
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import verify
from speculation.languages import Context, Language, reference
from speculation.rounds import Decoding, coupled_drafter, ranked_drafter, sampled_drafter, seeded, tokens_of

SEEDS = 3000
LEGAL = [
    (proposal, rule, nucleus)
    for proposal in Proposal
    for rule in Selection
    for nucleus in (False, True)
    if rule is not Selection.AUTO and refusal(proposal, rule, nucleus=nucleus, greedy=False) is None
]


def probability(counts: dict[Context, int], expected: dict[Context, float]) -> float:
    """Chance of counts so far off, or farther; 0 if something happened that cannot."""
    if any(count and not expected.get(key, 0.0) > 0 for key, count in counts.items()):
        return 0.0
    cells = [key for key in expected if expected[key] > 0]
    assert len(cells) <= 25
    total = sum(counts.values())
    wanted = [expected[key] * total for key in cells]
    found = stats.power_divergence([counts.get(key, 0) for key in cells], wanted, lambda_="log-likelihood")
    return float(found.pvalue)


def even_language(vocab: int, seed: int) -> Language:
    """Rows without rare tokens, so that no cell of a test is nearly empty."""

    def row(context: Context) -> Row:
        weights = np.random.default_rng([seed, *context, len(context)]).random(vocab) + 0.25
        return Row.from_dense(weights / weights.sum())

    return row


@pytest.mark.parametrize(("proposal", "selection", "nucleus"), LEGAL)
def test_the_law_over_many_seeds(proposal: Proposal, selection: Selection, nucleus: bool) -> None:
    """Two tokens of three, 9 cells. Nucleus verification is held against its own law by enumeration."""
    target, drafter = even_language(3, 3), even_language(3, 4)
    rule = Nucleus(0.6, max_deviation=0.5) if nucleus else None
    ways = {Proposal.RANKED: ranked_drafter, Proposal.SAMPLED: sampled_drafter}
    if proposal is Proposal.COUPLED:
        expected = reference(target, 2)
    else:
        decoding = Decoding(target, ways[proposal](drafter), selection, rule, budget=2, horizon=2)
        expected = tokens_of(decoding.laws())
    counts: dict[Context, int] = {}
    for seed in range(SEEDS):
        choices = seeded(seed, nucleus=nucleus)
        propose = coupled_drafter(drafter, choices.params) if proposal is Proposal.COUPLED else ways[proposal](drafter)
        tokens = Decoding(target, propose, selection, rule, budget=2, horizon=2).played(choices).tokens
        counts[tokens] = counts.get(tokens, 0) + 1
    assert probability(counts, expected) > 1e-6
    if nucleus:
        assert probability(counts, reference(target, 2)) < 1e-6  # the tests can tell the laws apart


# One position of a sampled tree, with streams that are shared.

TARGET = Row.from_dense(np.array([0.4, 0.3, 0.2, 0.1]))
ROW = ProposalRow(np.arange(4, dtype=np.int32), np.array([0.15, 0.15, 0.15, 0.55], dtype=np.float32))


class Shared(SeededChoices):
    """Choices whose streams are changed: `streams` says which key each purpose has instead of its own."""

    def __init__(self, seed: int, streams: dict[Purpose, Callable[[int], int]]) -> None:
        super().__init__(SamplingParams(temperature=1.0, seed=seed))
        object.__setattr__(self, "streams", streams)

    streams: dict[Purpose, Callable[[int], int]]

    def draw(self, row: Row, position: int, purpose: Purpose = Purpose.DRAW) -> int:
        if purpose not in self.streams:
            return super().draw(row, position, purpose)
        key = self.streams[purpose](position)
        return int(row.token_ids[np.argmax(row.probs / exponential(key, row.token_ids))])

    def accept(self, prob: float, position: int, sibling: int) -> bool:
        if Purpose.ACCEPT not in self.streams:
            return super().accept(prob, position, sibling)
        return uniform(self.streams[Purpose.ACCEPT](position), sibling) < prob


def first_sibling_key(seed: int, position: int) -> int:
    return sibling_key(propose_seed(seed, 0), 0, position)


def counted(choices_of: Callable[[int], Choices], count: int = 2, seeds: int = 10_000) -> dict[Context, int]:
    counts: dict[Context, int] = {}
    for seed in range(seeds):
        siblings = ROW.draw(first_sibling_key(seed, 7), count)
        tree = DraftTree.build(siblings, [ROOT] * count, rows=[ROW, *[None] * count])
        tokens = verify(tree, lambda _: TARGET, choices_of(seed), 7, lambda _: True).tokens
        counts[tokens] = counts.get(tokens, 0) + 1
    return counts


EXPECTED = {(token,): TARGET.prob(token) for token in range(4)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_streams_of_their_own_give_the_targets_law(count: int) -> None:
    """10 000 seeds, 4 cells."""
    assert probability(counted(seeded, count), EXPECTED) > 1e-6


def residual_by_the_noise_of_the_siblings(seed: int) -> Choices:
    return Shared(seed, {Purpose.RESIDUAL: partial(first_sibling_key, seed)})


def accepted_by_the_noise_of_the_siblings(seed: int) -> Choices:
    return Shared(seed, {Purpose.ACCEPT: partial(first_sibling_key, seed)})


def residual_by_the_noise_of_accepting(seed: int) -> Choices:
    return Shared(seed, {Purpose.RESIDUAL: lambda position: noise_key(seed, 0, position, Purpose.ACCEPT)})


def one_uniform_for_all_siblings(seed: int) -> Choices:
    class OneUniform(SeededChoices):
        def accept(self, prob: float, position: int, sibling: int) -> bool:
            return super().accept(prob, position, 0)

    return OneUniform(SamplingParams(temperature=1.0, seed=seed))


@pytest.mark.parametrize(
    ("shared", "count"),
    [
        (residual_by_the_noise_of_the_siblings, 1),
        (accepted_by_the_noise_of_the_siblings, 2),
        (residual_by_the_noise_of_accepting, 1),
        (one_uniform_for_all_siblings, 2),
    ],
)
def test_clause_5_a_shared_stream_is_seen(shared: Callable[[int], Choices], count: int) -> None:
    """10 000 seeds, 4 cells."""
    assert probability(counted(shared, count), EXPECTED) < 1e-6
