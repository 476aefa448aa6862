"""Proposals and best-first trees."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from paceline.speculation.choices import SeededChoices
from paceline.speculation.noise import gumbel
from paceline.speculation.propose import NO_CANDIDATES, Candidates, coupled, draft_noise_key, ranked
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path, best_first, prune
from paceline.speculation.tree import DraftTree

IDS = np.array([4, 2, 9, 7], dtype=np.int64)
LOGS = np.log([0.2, 0.2, 0.5, 0.1])


def test_ranked_orders_by_probability_then_id_and_skips_the_impossible() -> None:
    found = ranked(np.array([4, 2, 9, 7]), np.array([math.log(0.2), math.log(0.2), math.log(0.6), -math.inf]), 4)
    assert found.tokens.tolist() == [9, 2, 4]
    assert len(ranked(IDS, LOGS, 2)) == 2


def test_coupled_orders_by_strength_times_log_prob_plus_noise() -> None:
    key = draft_noise_key(SamplingParams(temperature=1.0, seed=3), 17)
    for strength in (0.5, 1.0, 2.0, 5.0):
        found = coupled(IDS, LOGS, key=key, strength=strength, width=4)
        assert found.tokens.tolist() == IDS[np.argsort(-(strength * LOGS + gumbel(key, IDS)))].tolist()
        assert np.exp(found.log_probs).sum() == pytest.approx(1.0)


def test_coupled_keeps_the_mass_of_partial_candidates() -> None:
    key = draft_noise_key(SamplingParams(temperature=1.0, seed=3), 17)
    found = coupled(IDS[:2], LOGS[:2], key=key, strength=2.0, width=4)
    assert np.exp(found.log_probs).sum() == pytest.approx(0.4)


def test_coupled_with_infinite_strength_is_ranked() -> None:
    key = draft_noise_key(SamplingParams(temperature=1.0, seed=3), 17)
    first, second = coupled(IDS, LOGS, key=key, strength=math.inf, width=3), ranked(IDS, LOGS, 3)
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.log_probs == pytest.approx(second.log_probs)


@pytest.mark.parametrize("strength", [0.0, -1.0, math.nan])
def test_a_strength_that_means_nothing_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="strength"):
        coupled(IDS, LOGS, key=1, strength=strength, width=2)


@pytest.mark.parametrize("strength", [1.0, 2.0, math.inf])
def test_impossible_tokens_are_not_coupled(strength: float) -> None:
    logs = np.array([-math.inf, 0.0, -math.inf, -math.inf])
    assert coupled(IDS, logs, key=9, strength=strength, width=4).tokens.tolist() == [2]
    assert len(coupled(IDS, np.full(4, -math.inf), key=9, strength=strength, width=4)) == 0


def test_strength_1_finds_the_draw_of_a_target_equal_to_the_drafter() -> None:
    order = np.argsort(IDS)
    row = Row(IDS[order], np.exp(LOGS[order]))
    for position in range(300):
        params = SamplingParams(temperature=1.0, seed=5)
        first = coupled(IDS, LOGS, key=draft_noise_key(params, position), strength=1.0, width=1)
        assert first.tokens[0] == SeededChoices(params).draw(row, position)


def table(path: Path) -> Candidates:
    """Three children whose probabilities depend on the last token."""
    shift = path[-1] if path else 0
    return ranked(np.array([1, 2, 3]), np.log(np.roll([0.6, 0.3, 0.1], shift)), 3)


def score(tree: DraftTree, node: int) -> float:
    assert tree.log_probs is not None
    return float(sum(tree.log_probs[each] for each in tree.path(node)))


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 8, 13])
def test_best_first_takes_the_best_paths_of_all(budget: int) -> None:
    tree = best_first(table, budget, max_depth=4)
    every = [path for depth in range(1, 5) for path in itertools.product([1, 2, 3], repeat=depth)]
    logs = {}
    for path in every:
        logs[path] = 0.0
        for depth, token in enumerate(path):
            known = table(path[:depth])
            logs[path] += float(known.log_probs[known.tokens.tolist().index(token)])
    best = sorted(logs.values(), reverse=True)[:budget]
    assert [score(tree, node) for node in range(len(tree))] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("budget", [1, 3, 8, 20])
def test_growing_level_by_level_gives_the_same_tree(budget: int) -> None:
    """As a model does it: look below the taken nodes that were not looked below, and select again."""
    below: dict[Path, Candidates] = {(): table(())}
    tree = best_first(lambda path: below.get(path, NO_CANDIDATES), budget, max_depth=4)
    for _ in range(4):
        for node in range(len(tree)):
            path = tuple(tree.path_tokens(node))
            below[path] = table(path)
        tree = best_first(lambda path: below.get(path, NO_CANDIDATES), budget, max_depth=4)
    whole = best_first(table, budget, max_depth=4)
    assert tree.tokens.tolist() == whole.tokens.tolist()
    assert tree.parents.tolist() == whole.parents.tolist()


def test_a_node_is_looked_below_once_and_only_while_budget_is_left() -> None:
    asked: list[Path] = []

    def expand(path: Path) -> Candidates:
        asked.append(path)
        return table(path)

    tree = best_first(expand, 5, max_depth=4)
    taken = [tuple(tree.path_tokens(node)) for node in range(5)]
    assert asked == [(), *taken[:-1]]


def test_any_leading_part_is_the_tree_of_that_budget() -> None:
    large = best_first(table, 12, max_depth=4)
    for budget in range(12):
        small = best_first(table, budget, max_depth=4)
        assert large.first(budget).tokens.tolist() == small.tokens.tolist()
        assert large.first(budget).parents.tolist() == small.parents.tolist()


def test_limits_of_depth_and_score() -> None:
    assert best_first(table, 50, max_depth=2).depths.max() == 2
    tree = best_first(table, 50, max_depth=4, min_log_score=math.log(0.2))
    assert len(tree)
    assert min(score(tree, node) for node in range(len(tree))) >= math.log(0.2) - 1e-6


def test_ties_go_to_lower_depth_then_lower_parent_then_lower_id() -> None:
    certain = Candidates(np.array([5], dtype=np.int32), np.zeros(1))
    even = ranked(np.array([8, 6]), np.log([0.5, 0.5]), 2)
    tree = best_first(lambda path: even if len(path) == 0 else certain, 4, 3)
    assert tree.tokens.tolist() == [6, 8, 5, 5]
    assert tree.parents.tolist() == [-1, -1, 0, 1]


def test_the_lower_depth_comes_before_the_lower_parent() -> None:
    """Two paths of .125: (1, 3, 4) below node 1 and (2, 5) below node 2."""
    children = {(): {1: 0.5, 2: 0.25}, (1,): {3: 1.0}, (1, 3): {4: 0.25}, (2,): {5: 0.5}}

    def expand(path: Path) -> Candidates:
        found = children.get(path, {})
        return ranked(np.array(list(found), dtype=np.int64), np.log(list(found.values())), 4)

    tree = best_first(expand, 5, max_depth=3)
    assert [tree.path_tokens(node) for node in range(5)] == [[1], [1, 3], [2], [2, 5], [1, 3, 4]]


def test_nothing_to_say_is_an_empty_tree() -> None:
    assert len(best_first(lambda _: NO_CANDIDATES, 8, 8)) == 0


@pytest.mark.parametrize("budget", [0, 1, 4, 9, 40])
def test_pruning_a_larger_tree_equals_growing_the_smaller_one(budget: int) -> None:
    pruned = prune(best_first(table, 40, max_depth=4), budget)
    grown = best_first(table, budget, max_depth=4)
    assert pruned.tokens.tolist() == grown.tokens.tolist()
    assert pruned.parents.tolist() == grown.parents.tolist()


def test_pruning_needs_scores() -> None:
    with pytest.raises(ValueError, match="log-probabilities"):
        prune(DraftTree.chain([1, 2]), 1)
    assert prune(DraftTree.build([1, 2], [-1, -1]), 1, [-2.0, -1.0]).tokens.tolist() == [2]


def exact_best_first(table: list[list[Fraction]], start: int, budget: int, depth: int) -> list[Path]:
    """Order by exact path products: score, lower depth, lower parent index, lower token id."""
    taken: list[tuple[Path, Fraction]] = []
    open_: list[tuple[Fraction, int, int, int, Path]] = []

    def offer(index: int, path: Path, score: Fraction) -> None:
        if len(path) < depth:
            row = table[path[-1] if path else start]
            open_.extend(
                (-score * prob, len(path) + 1, index, token, (*path, token)) for token, prob in enumerate(row) if prob
            )

    offer(-1, (), Fraction(1))
    while open_ and len(taken) < budget:
        best = min(open_)
        open_.remove(best)
        taken.append((best[-1], -best[0]))
        offer(len(taken) - 1, best[-1], -best[0])
    return [path for path, _ in taken]


@pytest.mark.parametrize("parts", [8, 10, 12])
@pytest.mark.parametrize("seed", range(25))
def test_equal_products_are_ties_whatever_rounding_makes_of_their_logarithms(seed: int, parts: int) -> None:
    """Rows of eighths, tenths and twelfths, some tokens ruled out: many products are equal."""
    random = np.random.default_rng(seed)
    vocab, budget, depth = int(random.integers(3, 6)), int(random.integers(3, 25)), int(random.integers(2, 5))
    table = [
        [Fraction(int(count), parts) for count in random.multinomial(parts, np.full(vocab, 1 / vocab))]
        for _ in range(vocab)
    ]

    def expand(path: Path) -> Candidates:
        row = np.array([float(each) for each in table[path[-1] if path else 0]])
        with np.errstate(divide="ignore"):
            return ranked(np.arange(vocab), np.log(row), vocab)

    tree = best_first(expand, budget, depth)
    assert [tuple(tree.path_tokens(node)) for node in range(len(tree))] == exact_best_first(table, 0, budget, depth)
    pruned = prune(best_first(expand, 3 * budget, depth), budget)
    assert pruned.tokens.tolist() == tree.tokens.tolist()
    assert pruned.parents.tolist() == tree.parents.tolist()
