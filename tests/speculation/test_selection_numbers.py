"""Best-first trees against numbers worked out apart from this code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from paceline.speculation.propose import Candidates, ranked
from paceline.speculation.select import Path, best_first, prune
from paceline.speculation.tree import DraftTree


@dataclass(frozen=True)
class Case:
    """Order-1 tables: the row after a token is the table's row of that token. Paths are written as digits."""

    target: list[list[float]]
    draft: list[list[float]]
    context_token: int
    max_depth: int
    budget: int
    drafted: str  # in selection order
    accepted: float  # expected accepted tokens of the drafted tree
    larger: str  # three times the budget
    pruned: str  # of the larger, the best by the target's row at the context and the drafter's below
    accepted_pruned: float


CASES = [
    Case(
        target=[
            [0.005262563546004459, 0.9425744988522495, 0.05216293760174606],
            [0.0012668771129200466, 0.07699453153044154, 0.9217385913566384],
            [0.32256104579873773, 0.2389211697170798, 0.4385177844841823],
        ],
        draft=[
            [0.0035659822395667676, 0.9606017654744953, 0.03583225228593793],
            [0.30218275739046985, 0.048460291103121986, 0.6493569515064082],
            [0.23132523294403604, 0.14578923137546834, 0.6228855356804954],
        ],
        context_token=0,
        max_depth=3,
        budget=8,
        drafted="1 12 122 10 101 120 121 11",
        accepted=2.75508184129766,
        larger="1 12 122 10 101 120 121 11 2 112 22 110 222 102 20 201 21 220 0 01 212 221 111 012",
        pruned="1 12 122 10 101 120 121 2",
        accepted_pruned=2.7346716969277365,
    ),
    Case(  # many ties, and tokens the drafter rules out
        target=[
            [0.125, 0.0, 0.125, 0.5, 0.25],
            [0.0, 0.125, 0.125, 0.625, 0.125],
            [0.25, 0.25, 0.25, 0.0, 0.25],
            [0.0, 0.125, 0.375, 0.125, 0.375],
            [0.25, 0.375, 0.125, 0.0, 0.25],
        ],
        draft=[
            [0.25, 0.125, 0.25, 0.0, 0.375],
            [0.125, 0.375, 0.125, 0.375, 0.0],
            [0.625, 0.125, 0.125, 0.125, 0.0],
            [0.25, 0.0, 0.125, 0.375, 0.25],
            [0.375, 0.25, 0.0, 0.25, 0.125],
        ],
        context_token=4,
        max_depth=2,
        budget=3,
        drafted="0 1 3",
        accepted=0.625,
        larger="0 1 3 04 4 00 02 11 13",
        pruned="1 0 4",
        accepted_pruned=0.875,
    ),
    Case(  # ties over several depths
        target=[[0.25, 0.5, 0.25], [0.375, 0.375, 0.25], [0.5, 0.375, 0.125]],
        draft=[[0.25, 0.5, 0.25], [0.125, 0.375, 0.5], [0.25, 0.625, 0.125]],
        context_token=1,
        max_depth=4,
        budget=6,
        drafted="2 1 21 12 212 11",
        accepted=0.9765625,
        larger="2 1 21 12 212 11 0 20 211 121 2121 112 22 01 201 2112 1212 111",
        pruned="0 1 2 01 12 21",
        accepted_pruned=1.375,
    ),
]


def log_row(table: list[list[float]], token: int) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(table[token]))


def grow(case: Case, budget: int) -> DraftTree:
    def expand(path: Path) -> Candidates:
        row = log_row(case.draft, path[-1] if path else case.context_token)
        return ranked(np.arange(len(row)), row, len(row))

    return best_first(expand, budget, case.max_depth)


def paths(tree: DraftTree) -> list[list[int]]:
    return [tree.path_tokens(node) for node in range(len(tree))]


def written(tree: DraftTree) -> str:
    return " ".join("".join(map(str, path)) for path in paths(tree))


def expected_accepted(case: Case, tree: DraftTree) -> float:
    """The sum of the target's path probabilities."""
    total = 0.0
    for path in paths(tree):
        steps = zip([case.context_token, *path], path, strict=False)
        total += float(np.prod([case.target[before][token] for before, token in steps]))
    return total


@pytest.mark.parametrize("case", CASES)
def test_the_drafted_tree(case: Case) -> None:
    tree = grow(case, case.budget)
    assert written(tree) == case.drafted
    assert expected_accepted(case, tree) == pytest.approx(case.accepted, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_larger_tree_pruned_by_the_targets_row(case: Case) -> None:
    larger = grow(case, 3 * case.budget)
    assert written(larger) == case.larger
    log_probs = [
        log_row(case.draft, path[-2])[path[-1]] if len(path) > 1 else log_row(case.target, case.context_token)[path[-1]]
        for path in paths(larger)
    ]
    pruned = prune(larger, case.budget, log_probs)
    assert written(pruned) == case.pruned
    assert expected_accepted(case, pruned) == pytest.approx(case.accepted_pruned, abs=1e-12)
