"""Rounds of each selection rule along a reply that is known.

Under exact verification of ranked trees every rule emits the tokens of plain decoding, so that a recorded reply decides
every walk: what a rule's rounds emit, round after round, costs no pass of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.speculation.modes import Selection
from paceline.speculation.rows import Row
from paceline.speculation.select import rerank
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import retained
from paceline.study.acceptance import no_deeper, walked

CANDIDATES = 3  # times the budget is what `rerank` and `retain` choose from
PASSES = {Selection.DRAFT: 1, Selection.RETAIN: 1, Selection.RERANK: 2, Selection.DRAW_FIRST: 2}  # of the target


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a rule's rounds came to."""

    rounds: int
    tokens: int  # emitted
    nodes: int  # verified; a token drawn first counts as one
    kept: int  # rounds that began with a retained row


def replay(
    rule: Selection,
    budget: int,
    reply: Sequence[int],
    stretch: int,
    max_depth: int,
    tree_at: Callable[[int], DraftTree],
    row_at: Callable[[int], Row],
) -> Rounds:
    """The rounds that begin within the first `stretch` tokens of a reply; the last one may end behind.

    Args:
        rule: one of DRAFT, RETAIN, RERANK, DRAW_FIRST.
        budget: most nodes of a tree.
        reply: long enough for a round that begins at `stretch - 1`.
        stretch: tokens of the reply in which rounds begin.
        max_depth: most levels of a tree.
        tree_at: the drafter's best candidates after that many tokens of the reply.
        row_at: the target's row there.
    """
    rounds = tokens = nodes = kept = at = 0
    row: Row | None = None  # retained
    while at < stretch:
        if rule is Selection.DRAW_FIRST:
            tree = below_drawn(tree_at(at + 1), budget, max_depth)
            emitted, size = 2 + len(walked(tree, list(reply[at + 1 :]))), 1 + len(tree)
        else:
            first = row if rule is Selection.RETAIN else row_at(at) if rule is Selection.RERANK else None
            tree = chosen(tree_at(at), budget, first)
            path, size = walked(tree, list(reply[at:])), len(tree)
            emitted = 1 + len(path)
            kept += row is not None
            row = None
            if rule is Selection.RETAIN and path:
                row = retained(row_at(at + len(path)), tree, path[-1])
                emitted -= row is not None
        rounds, tokens, nodes, at = rounds + 1, tokens + emitted, nodes + size, at + emitted
    return Rounds(rounds, tokens, nodes, kept)


def chosen(candidates: DraftTree, budget: int, row: Row | None) -> DraftTree:
    """The tree that is verified: by the row of the context if there is one, else as the drafter ranks it."""
    return candidates.first(budget) if row is None else rerank(candidates.first(CANDIDATES * budget), row, budget)


def below_drawn(candidates: DraftTree, budget: int, max_depth: int) -> DraftTree:
    """The tree below a token drawn first, which counts as one node and one level."""
    return no_deeper(candidates, max_depth - 1).first(budget - 1)


def previous(reply: Sequence[int], at: int, tree: DraftTree, row: Row) -> Row | None:
    """The row retained at `at` if the round before began one token earlier with `tree`; None if it kept none."""
    child = tree.child(ROOT, reply[at - 1])
    return None if child is None else retained(row, tree, child)
