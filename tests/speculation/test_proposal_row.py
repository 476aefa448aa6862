"""Rows that siblings are drawn from: what travels, what is refused, and the law of the draws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from paceline.speculation.noise import Purpose, noise_key, propose_seed
from paceline.speculation.proposal_row import ProposalRow, sibling_key
from paceline.speculation.tree import ROOT, DraftTree, TreeFault
from paceline.study.outcomes import law


def row_of(ids: list[int], weights: list[float]) -> ProposalRow:
    return ProposalRow(np.asarray(ids, dtype=np.int32), np.asarray(weights, dtype=np.float32))


def test_the_most_probable_tokens_travel_ties_to_the_lowest_id() -> None:
    ids, probs = np.array([9, 4, 7, 2, 5]), np.array([0.2, 0.2, 0.3, 0.2, 0.1])
    row = ProposalRow.of(ids, probs, 3)
    assert row is not None
    assert row.token_ids.tolist() == [7, 2, 4]
    assert row.weights.dtype == np.float32
    assert row.weights.tolist() == pytest.approx([0.3, 0.2, 0.2])
    assert row.token_ids.dtype == np.int32


def test_what_float32_cannot_hold_is_no_token_of_the_row() -> None:
    row = ProposalRow.of(np.array([3, 1]), np.array([1.0, 1e-60]), 4)
    assert row is not None
    assert row.token_ids.tolist() == [3]
    assert ProposalRow.of(np.array([3, 1]), np.array([0.0, 1e-60]), 4) is None
    assert ProposalRow.of(np.zeros(0, dtype=np.int64), np.zeros(0), 4) is None


def test_a_good_row_has_no_fault() -> None:
    assert row_of([0, 7, 3], [1e-30, 0.5, 3e38]).fault(8) is None


@pytest.mark.parametrize(
    ("ids", "weights", "said"),
    [
        ([], [], "0 ids and 0 weights"),
        ([1, 2], [0.5], "2 ids and 1 weights"),
        ([1], [0.5, 0.5], "1 ids and 2 weights"),
        ([-1, 2], [0.5, 0.5], "allowed: 0 to 7"),
        ([1, 8], [0.5, 0.5], "allowed: 0 to 7"),
        ([1, 1], [0.5, 0.5], "twice"),
        ([1, 2], [0.5, 0.0], "above 0"),
        ([1, 2], [0.5, -0.1], "above 0"),
        ([1, 2], [0.5, float("nan")], "finite"),
        ([1, 2], [float("inf"), 0.5], "finite"),
    ],
)
def test_each_fault_is_named(ids: list[int], weights: list[float], said: str) -> None:
    found = row_of(ids, weights).fault(8)
    assert found is not None
    assert said in found


GOOD = row_of([0, 1, 2], [0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((GOOD, None), "2 rows, allowed: 4"),
        ((GOOD, None, None, None, None), "5 rows, allowed: 4"),
        ((None, None, None, None), "row below node -1: none, although it has children"),
        ((GOOD, None, GOOD, None), "row below node 0: none, although it has children"),
        ((row_of([0, 2], [0.5, 0.5]), GOOD, None, None), "row below node -1: it lacks a child"),
        ((GOOD, row_of([0, 1], [0.5, 0.5]), None, None), "row below node 0: it lacks a child"),
        ((GOOD, row_of([2, 2], [0.5, 0.5]), None, None), "row below node 0: an id occurs twice"),
        ((GOOD, GOOD, row_of([9], [0.5]), None), "row below node 1: ids 9 to 9, allowed: 0 to 7"),
    ],
)
def test_a_tree_from_the_wire_needs_the_rows_of_its_siblings(rows: tuple[ProposalRow | None, ...], said: str) -> None:
    tokens, parents = np.array([0, 1, 2], dtype=np.int32), np.array([ROOT, ROOT, 0], dtype=np.int32)
    DraftTree.checked(tokens, parents, None, (GOOD, GOOD, None, None), vocab_size=8, max_nodes=4, max_depth=4)
    with pytest.raises(TreeFault, match=said):
        DraftTree.checked(tokens, parents, None, rows, vocab_size=8, max_nodes=4, max_depth=4)


# The draws.


def test_siblings_are_drawn_without_replacement_by_weight() -> None:
    """Pairs from three tokens, 20 000 keys; G-test on 6 cells, false alarm 1e-6."""
    expected = law(lambda choices: tuple(choices.siblings(GOOD, 2)))
    counts = dict.fromkeys(itertools.permutations(range(3), 2), 0)
    for seed in range(20_000):
        first, second = GOOD.draw(sibling_key(seed, 0, 5), 2)
        counts[first, second] += 1
    assert expected.keys() == counts.keys()
    wanted = [expected[key] * 20_000 for key in counts]
    assert stats.power_divergence(list(counts.values()), wanted, lambda_="log-likelihood").pvalue > 1e-6


def test_fewer_siblings_are_the_leading_ones_whatever_the_order_of_the_row() -> None:
    turned = row_of([2, 0, 1], [0.2, 0.5, 0.3])
    for key in range(200):
        assert GOOD.draw(key, 3) == turned.draw(key, 3)
        assert GOOD.draw(key, 9) == GOOD.draw(key, 3)
        assert all(GOOD.draw(key, count) == GOOD.draw(key, 3)[:count] for count in range(3))


# The seed that the drafter may have.


def test_the_seed_of_proposals_is_pinned() -> None:
    """Both ends compute it, perhaps with versions that differ."""
    assert propose_seed(0, 0) == 2007447760606692228
    assert propose_seed(2**64 - 1, 3) == 13315235028356043139


def test_the_seed_of_proposals_shares_no_stream_with_the_requests_own() -> None:
    seeds = [*range(30), 2**63, 2**64 - 1]
    addresses = list(itertools.product(seeds, range(2), range(4)))  # seed, choice, position
    keys = {noise_key(*address, purpose) for address in addresses for purpose in Purpose}
    told = {sibling_key(propose_seed(seed, choice), choice, position) for seed, choice, position in addresses}
    assert len(keys) == len(addresses) * len(Purpose)
    assert len(told) == len(addresses)
    assert not keys & told


@pytest.mark.parametrize("purpose", list(Purpose))
def test_the_noise_of_proposals_is_independent_of_each_stream_of_the_request(purpose: Purpose) -> None:
    """First sibling and a draw by that stream, 20 000 seeds; G-test on 9 cells, false alarm 1e-6 each."""
    counts = np.zeros((3, 3))
    for seed in range(20_000):
        [drawn] = GOOD.draw(noise_key(seed, 0, 4, purpose), 1)
        [sibling] = GOOD.draw(sibling_key(propose_seed(seed, 0), 0, 4), 1)
        counts[drawn, sibling] += 1
    wanted = np.outer(GOOD.weights, GOOD.weights).astype(np.float64)
    wanted *= counts.sum() / wanted.sum()
    assert stats.power_divergence(counts.ravel(), wanted.ravel(), lambda_="log-likelihood").pvalue > 1e-6
