"""Sampled trees of scheduled shape: the shape knows no values, siblings are as drawn, and cuts keep the law."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import stats

from paceline.speculation.modes import Selection
from paceline.speculation.noise import propose_seed
from paceline.speculation.proposal_row import ProposalRow, sibling_key
from paceline.speculation.rows import Row
from paceline.speculation.select import Path
from paceline.speculation.shape import MOST_CHILDREN, cut, drawn_as_told, sampled_tree, scheduled_shape
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import verify
from paceline.study.outcomes import ScriptedChoices, rounds
from speculation.languages import Context, difference, language, reference
from speculation.rounds import Decoding, Propose, sampled_drafter, seeded, tokens_of


def row_of(*weights: float) -> ProposalRow:
    held = [(token, weight) for token, weight in enumerate(weights) if weight > 0]
    ids, kept = zip(*held, strict=True)
    return ProposalRow(np.asarray(ids, dtype=np.int32), np.asarray(kept, dtype=np.float32))


def key_at(depth: int) -> int:
    return 1000 + depth


def even(_: Path) -> ProposalRow:
    return row_of(*[1.0] * 12)


def drawn(shape: DraftTree, row_below: Callable[[Path], ProposalRow | None] = even) -> DraftTree:
    return sampled_tree(shape, row_below, key_at)


@pytest.mark.parametrize(("budget", "depth"), [(1, 4), (3, 1), (8, 3), (16, 2), (40, 6)])
def test_a_shape_fills_its_budget_within_its_depth(budget: int, depth: int) -> None:
    shape = scheduled_shape(budget, depth)
    assert len(shape) == min(budget, sum(MOST_CHILDREN**level for level in range(1, depth + 1)))
    assert int(shape.depths.max()) <= depth
    for node in range(ROOT, len(shape)):
        ranks = shape.tokens[shape.children(node)].tolist()
        assert ranks == list(range(len(ranks)))
        assert len(ranks) <= MOST_CHILDREN


def test_a_smaller_shape_is_the_leading_part_of_a_larger_one() -> None:
    largest = scheduled_shape(40, 5)
    for budget in range(1, 40):
        smaller, leading = scheduled_shape(budget, 5), largest.first(budget)
        assert smaller.tokens.tolist() == leading.tokens.tolist()
        assert smaller.parents.tolist() == leading.parents.tolist()


def test_a_shape_of_nothing_is_empty() -> None:
    assert len(scheduled_shape(0, 3)) == len(scheduled_shape(4, 0)) == 0


def test_a_sampled_tree_has_the_shape_and_the_rows_it_was_drawn_from() -> None:
    shape, asked = scheduled_shape(12, 3), []

    def row_below(path: Path) -> ProposalRow:
        asked.append(path)
        return row_of(*np.random.default_rng([3, *path]).random(12))

    tree = sampled_tree(shape, row_below, key_at)
    assert tree.parents.tolist() == shape.parents.tolist()
    assert tree.log_probs == pytest.approx(shape.log_probs)
    inner = [node for node in range(ROOT, len(tree)) if tree.children(node)]
    assert sorted(asked) == sorted(tuple(tree.path_tokens(node)) if node != ROOT else () for node in inner)
    assert tree.rows is not None
    assert [row is not None for row in tree.rows] == [bool(tree.children(node)) for node in range(ROOT, len(tree))]
    DraftTree.checked(tree.tokens, tree.parents, tree.log_probs, tree.rows, vocab_size=12, max_nodes=12, max_depth=3)


def test_siblings_are_drawn_with_the_key_of_their_depth() -> None:
    row = row_of(0.4, 0.3, 0.2, 0.1)
    tree = drawn(scheduled_shape(10, 3), lambda _: row)
    for node in range(ROOT, len(tree)):
        children = tree.children(node)
        depth = 1 if node == ROOT else int(tree.depths[node]) + 1
        assert tree.tokens[children].tolist() == row.draw(key_at(depth), len(children))


def test_a_small_row_gives_all_its_tokens_and_none_gives_a_leaf() -> None:
    tree = drawn(scheduled_shape(12, 3), lambda path: row_of(0.0, 0.7, 0.3) if not path else None)
    assert sorted(tree.tokens.tolist()) == [1, 2]
    assert len(drawn(scheduled_shape(12, 3), lambda _: None)) == 0


def test_what_was_drawn_is_told_as_drawn() -> None:
    tree = drawn(scheduled_shape(14, 4), lambda path: row_of(*np.random.default_rng([5, *path]).random(6)))
    assert drawn_as_told(tree, key_at)
    assert all(drawn_as_told(tree.first(count), key_at) for count in range(len(tree) + 1))
    for node in tree.children(ROOT):
        below = tree.below([int(tree.tokens[node])])
        assert below is not None
        assert drawn_as_told(below, lambda depth: key_at(depth + 1))
        assert not len(below) or not drawn_as_told(below, key_at)


def swapped(tree: DraftTree) -> DraftTree:
    """The first two siblings in the other order."""
    first, second, *_ = tree.children(ROOT)
    tokens = tree.tokens.copy()
    tokens[[first, second]] = tokens[[second, first]]
    return DraftTree(tokens, tree.parents, tree.log_probs, tree.rows)


def of_tokens(tree: DraftTree, node: int, token: int) -> DraftTree:
    tokens = tree.tokens.copy()
    tokens[node] = token
    return DraftTree(tokens, tree.parents, tree.log_probs, tree.rows)


def other_row(tree: DraftTree) -> DraftTree:
    """A row that would have given other siblings."""
    assert tree.rows is not None
    row = tree.rows[0]
    assert row is not None
    return DraftTree(
        tree.tokens, tree.parents, tree.log_probs, (ProposalRow(row.token_ids, row.weights[::-1] ** 4), *tree.rows[1:])
    )


LIES: dict[str, Callable[[DraftTree], DraftTree]] = {
    "siblings in another order": swapped,
    "a token that was not drawn": lambda tree: of_tokens(tree, tree.children(ROOT)[0], 0),
    "a token deep in the tree": lambda tree: of_tokens(tree, len(tree) - 1, (int(tree.tokens[-1]) + 1) % 6),
    "another row": other_row,
    "the best siblings kept": lambda tree: tree.keep(
        [node for node in range(len(tree)) if tree.path(node)[0] != tree.children(ROOT)[0]]
    ),
    "no rows": lambda tree: DraftTree(tree.tokens, tree.parents, tree.log_probs),
    "a row left out": lambda tree: DraftTree(tree.tokens, tree.parents, tree.log_probs, (None, *(tree.rows or ())[1:])),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_tree_that_lies_is_seen(lie: str) -> None:
    tree = drawn(scheduled_shape(9, 3), lambda path: row_of(0.01, 0.1, 0.15, 0.2, 0.25, 0.3))
    assert 0 not in tree.tokens[tree.children(ROOT)]
    assert drawn_as_told(tree, key_at)
    assert not drawn_as_told(LIES[lie](tree), key_at)


def test_a_tree_drawn_under_other_noise_is_seen() -> None:
    tree = drawn(scheduled_shape(9, 3))
    assert not drawn_as_told(tree, lambda depth: key_at(depth) + 1)


# The law.


def cutting(how: Callable[[DraftTree], DraftTree], drafter: Propose) -> Propose:
    return lambda context, budget, depth, choices: how(drafter(context, budget, depth, choices))


def bias(how: Callable[[DraftTree], DraftTree], seed: int = 2, horizon: int = 2) -> float:
    """Of two tokens, with trees of five nodes that are cut."""
    propose = cutting(how, sampled_drafter(language(3, seed + 100)))
    way = Decoding(language(3, seed), propose, Selection.DRAFT, budget=5, horizon=horizon)
    return difference(tokens_of(way.laws()), reference(way.target, horizon))


def without(*ranks: int) -> Callable[[DraftTree], DraftTree]:
    """Leaves out siblings at the root by rank, with what is below them."""

    def how(tree: DraftTree) -> DraftTree:
        roots = tree.children(ROOT)
        gone = {roots[rank] for rank in ranks if rank < len(roots)}
        return tree.keep([node for node in range(len(tree)) if tree.path(node)[0] not in gone])

    return how


@pytest.mark.parametrize("count", range(6))
def test_the_leading_nodes_keep_the_law(count: int) -> None:
    assert bias(lambda tree: tree.first(count)) < 1e-12
    assert bias(lambda tree: cut(tree, count, 5)) < 1e-12


@pytest.mark.parametrize("depth", range(3))
def test_the_leading_levels_keep_the_law(depth: int) -> None:
    assert bias(lambda tree: tree.keep([node for node in range(len(tree)) if tree.depths[node] <= depth])) < 1e-12


def test_leaving_out_the_last_sibling_by_rank_keeps_the_law_and_the_first_does_not() -> None:
    assert bias(without(1, 2)) < 1e-12
    assert max(bias(without(0), seed) for seed in range(3)) > 1e-3


def test_leaving_out_a_sibling_by_its_token_is_seen() -> None:
    def how(tree: DraftTree) -> DraftTree:
        return tree.keep([node for node in range(len(tree)) if tree.tokens[tree.path(node)[0]] != 0])

    assert max(bias(how, seed) for seed in range(3)) > 1e-3


def test_the_part_below_a_token_that_was_emitted_since_keeps_the_law() -> None:
    """The tree was drawn before the first token was; where it was not foreseen nothing is drafted below."""
    target, propose = language(3, 4), sampled_drafter(language(3, 104))

    def step(reply: Context, choices: ScriptedChoices) -> Context:
        older = propose((), 5, 2, choices)
        first = (choices.draw(target(()), 0),)
        tree = older.below(first) or DraftTree.empty()
        walk = verify(tree, lambda node: target((*first, *tree.path_tokens(node))), choices, 1, lambda _: True)
        return (*first, *walk.tokens)

    found = rounds(step, (), lambda reply: len(reply) == 2)
    assert difference(found, reference(target, 2)) < 1e-12


def skewed(path: Path) -> ProposalRow:
    """0, then 1 at the root; 4 or 5 first below 0; 3, 4 and 5 below 1; one token below (0, 4), two elsewhere."""
    rows = {(): row_of(1.0, 1e-6), (0,): row_of(0, 1e-6, 0, 0, 0.5, 0.5), (1,): row_of(0, 0, 0, 0.5, 0.25, 0.25)}
    return rows.get(path) or (row_of(1.0) if path == (0, 4) else row_of(0.5, 0.5))


@pytest.mark.parametrize("by_place", [True, False])
def test_a_count_of_nodes_where_rows_differ_in_size_is_seen(by_place: bool) -> None:
    """Nodes of a depth share their noise: a count that moves with one node's token knows its neighbours' tokens.

    The tenth node is the second sibling below 1 only if 4 came first below 0, and then that sibling is likely 4 too.
    The target wants 1, then 4 or 5 evenly. 3 000 seeds; G-test on 2 cells, false alarm 1e-6.
    """
    rows = {0: Row.one_hot(1), 1: Row.from_dense(np.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.5]))}
    counts = np.zeros(2)
    for seed in range(3000):
        tree = sampled_tree(scheduled_shape(14, 3), skewed, partial(_key, seed))
        tree = cut(tree, 11, 3) if by_place else tree.first(10)
        depths = {ROOT: 0, **dict(enumerate(tree.depths.tolist()))}
        walk = verify(tree, partial(_row_at, rows, depths), seeded(seed), 0, lambda token: token > 3)
        counts[walk.tokens[1] - 4] += 1
    found = stats.power_divergence(counts, np.full(2, counts.sum() / 2), lambda_="log-likelihood")
    assert bool(found.pvalue > 1e-6) is by_place


def _key(seed: int, depth: int) -> int:
    return sibling_key(propose_seed(seed, 0), 0, depth - 1)


def _row_at(rows: dict[int, Row], depths: dict[int, int], node: int) -> Row:
    return rows[depths[node]]


def test_a_tree_without_nodes_tells_the_truth() -> None:
    assert drawn_as_told(DraftTree.empty(), lambda depth: depth)
    assert not drawn_as_told(DraftTree.chain([1]), lambda depth: depth)
