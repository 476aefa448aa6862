"""One context under every selection rule and budget: exact expectations, given the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.speculation.modes import Selection
from paceline.speculation.rows import Row, process
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path
from paceline.speculation.tree import DraftTree
from paceline.study.acceptance import expected_accepted
from paceline.study.path_rows import PathRows
from paceline.study.replay import chosen


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Tokens that may be drawn first, with weights that make a sum over them the mean over all."""

    weights: Mapping[int, float]
    enumerated: float  # mass of those that are taken one by one


def first_tokens(row: Row, count: int, rng: np.random.Generator) -> FirstTokens:
    """The `count` most probable tokens with their probabilities, and one drawn from the rest, for all of it."""
    order = np.lexsort((row.token_ids, -row.probs))
    top = order[:count]
    weights = {int(row.token_ids[each]): float(row.probs[each]) for each in top}
    enumerated = sum(weights.values())
    rest = row.without(list(weights)) if len(order) > count and enumerated < 1 else None
    if rest is not None:
        weights[int(rng.choice(rest.token_ids, p=rest.probs / rest.probs.sum()))] = 1.0 - enumerated
    return FirstTokens(weights, enumerated)


def union(trees: Sequence[tuple[Path, DraftTree]]) -> tuple[list[Path], set[Path]]:
    """Every node of trees that hang below a path each, parents first, and those of them that have children."""
    nodes: dict[Path, None] = {}
    inner: set[Path] = set()
    for top, tree in trees:
        for end in range(1, len(top) + 1):
            nodes.setdefault(top[:end])
        paths: list[Path] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            paths.append((*(top if parent < 0 else paths[parent]), token))
            nodes.setdefault(paths[-1])
    for path in nodes:
        inner.add(path[:-1])
    return list(nodes), inner - {()}


class Judged:
    """The target's rows at the nodes of candidate trees below one context, from one pass."""

    def __init__(self, rows: PathRows, params: SamplingParams, trees: Sequence[tuple[Path, DraftTree]]) -> None:
        """Runs the pass; `rows` stands at the context."""
        paths, inner = union(trees)
        rows.look(paths, inner)
        vocab_size = rows.runner.info.vocab_size
        self._rows = {path: process(logits, params, vocab_size) for path, logits in rows.logits.items()}

    def expected(self, tree: DraftTree, first: Row | None = None, top: Path = ()) -> float:
        """Expected acceptance of a tree below the path `top`; `first` stands in for the row there."""

        def chance(path: Path) -> float:
            row = first if first is not None and len(path) == 1 else self._rows[(*top, *path[:-1])]
            return row.prob(path[-1])

        return expected_accepted(tree, chance)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule with a budget at a context."""

    accepted: float  # expected
    nodes: float  # verified in the mean


def outcomes(
    judged: Judged,
    candidates: DraftTree,
    row: Row,
    kept: Mapping[int, Row | None],
    below: Mapping[int, DraftTree],
    firsts: FirstTokens,
    budgets: Sequence[int],
) -> dict[Selection, list[Outcome | None]]:
    """Each rule's outcome for each budget; None for `retain` where the round before kept no row.

    Args:
        judged: the target's rows.
        candidates: the drafter's tree at the context.
        row: the target's row at the context.
        kept: by budget, the row the round before retained.
        below: the drafter's tree below each token that may be drawn first.
        firsts: those tokens.
        budgets: most nodes of a tree.
    """
    found: dict[Selection, list[Outcome | None]] = {rule: [] for rule in Selection if rule is not Selection.AUTO}
    for budget in budgets:
        for rule, first in ((Selection.DRAFT, None), (Selection.RERANK, row), (Selection.RETAIN, kept[budget])):
            tree = chosen(candidates, budget, first)
            known = first is not None or rule is not Selection.RETAIN
            found[rule].append(Outcome(judged.expected(tree, first), len(tree)) if known else None)
        accepted = nodes = 1.0
        for token, weight in firsts.weights.items():
            tree = below[token].first(budget - 1)
            accepted += weight * judged.expected(tree, top=(token,))
            nodes += weight * len(tree)
        found[Selection.DRAW_FIRST].append(Outcome(accepted, nodes))
    return found
