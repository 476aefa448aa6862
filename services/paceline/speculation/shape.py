"""The shape of a sampled tree: how many children a node has is fixed before any is drawn (THEORY 3, clause 2).

A node is named by the ranks of its ancestors in the order they were drawn, never by their tokens. Each rank has a
standing probability; the shape is the best-first tree of these, so a budget goes where acceptances usually are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import Candidates
from paceline.speculation.select import Path, best_first
from paceline.speculation.tree import ROOT, DraftTree

FIRST, NEXT = 0.6, 0.4  # of the first sibling being accepted, and of each later one against the one before
MOST_CHILDREN = 8
DEEPEST = 8  # levels of any shape, so that both ends mean the same one by a budget


@lru_cache(maxsize=256)
def scheduled_shape(budget: int, max_depth: int) -> DraftTree:
    """A tree whose tokens are ranks; log-probabilities are the standing ones. The same for every context."""
    ranks = np.arange(MOST_CHILDREN, dtype=np.int32)
    log_probs = math.log(FIRST) + math.log(NEXT) * ranks.astype(np.float64)
    return best_first(lambda _: Candidates(ranks, log_probs), budget, min(max_depth, DEEPEST))


@lru_cache(maxsize=1024)
def looked_below(budget: int, max_depth: int, width: int, passes: int) -> frozenset[Path]:
    """Places of the scheduled shape that so many passes look below, the leading `width` that are there in each.

    They are counted by place, whatever was drawn there: if an end token passed its turn on, another node of its depth
    would have children because of it, drawn with the very noise that had drawn it (clause 2).
    """
    shape = scheduled_shape(budget, max_depth)
    looked = {ROOT}
    waiting = [node for node in range(len(shape)) if shape.children(node)]
    for _ in range(passes):
        looked.update([node for node in waiting if int(shape.parents[node]) in looked][:width])
        waiting = [node for node in waiting if node not in looked]
    return frozenset(tuple(shape.path_tokens(node)) for node in looked - {ROOT})


@lru_cache(maxsize=1024)
def grown_shape(budget: int, max_depth: int, width: int, passes: int) -> DraftTree:
    """The part of the scheduled shape below the root and the places that `looked_below` names."""
    shape = scheduled_shape(budget, max_depth)
    looked = looked_below(budget, max_depth, width, passes) | {()}
    return shape.keep([node for node in range(len(shape)) if tuple(shape.path_tokens(node)[:-1]) in looked])


def sampled_tree(
    shape: DraftTree, row_below: Callable[[Path], ProposalRow | None], key_at: Callable[[int], int]
) -> DraftTree:
    """A tree of that shape with its siblings drawn.

    Args:
        shape: from `scheduled_shape`. Where a row has fewer tokens than a node has children, all of them are drawn.
        row_below: the drafter's row below a path of tokens; None leaves the node a leaf. It may depend on the path and
            on nothing that was drawn beside it.
        key_at: key of the noise for siblings at a depth, 1 for the first level.

    Returns:
        Nodes in the order of the shape, with the shape's log-probabilities and the rows that siblings were drawn from.
    """
    wanted = {node: len(shape.children(node)) for node in range(ROOT, len(shape))}
    tokens: list[int] = []
    parents: list[int] = []
    log_probs: list[float] = []
    rows: list[ProposalRow | None] = [None]  # below the root, then below each node
    kept: dict[int, int] = {ROOT: ROOT}  # node of the shape -> node of the tree
    paths: dict[int, Path] = {ROOT: ()}  # by node of the shape
    siblings: dict[int, list[int]] = {}

    def drawn(above: int) -> list[int]:
        if above not in siblings:
            row = row_below(paths[above]) if wanted[above] else None
            rows[kept[above] + 1] = row
            siblings[above] = [] if row is None else row.draw(key_at(len(paths[above]) + 1), wanted[above])
        return siblings[above]

    for node, (rank, above) in enumerate(zip(shape.tokens.tolist(), shape.parents.tolist(), strict=True)):
        if above not in kept or rank >= len(drawn(above)):
            continue
        kept[node] = len(tokens)
        paths[node] = (*paths[above], drawn(above)[rank])
        tokens.append(drawn(above)[rank])
        parents.append(kept[above])
        log_probs.append(float(shape.log_probs[node]) if shape.log_probs is not None else 0.0)
        rows.append(None)
    return DraftTree.build(tokens, parents, log_probs, rows)


def cut(tree: DraftTree, budget: int, max_depth: int) -> DraftTree:
    """The nodes of a sampled tree whose place is in the scheduled shape of that size.

    Counting nodes would not do: where a row had fewer tokens than the shape has children, the place of the last node
    counted depends on tokens that were drawn, and through the noise that nodes of a depth share on the node itself.
    """
    scheduled = set(places(scheduled_shape(budget, max_depth)))
    return tree.keep([node for node, place in enumerate(places(tree)) if place in scheduled])


def places(tree: DraftTree) -> list[Path]:
    """Each node's place in its shape: the ranks of its ancestors and its own, in the order they were drawn."""
    ranks: dict[int, Path] = {ROOT: ()}
    for node in range(ROOT, len(tree)):
        ranks |= {child: (*ranks[node], rank) for rank, child in enumerate(tree.children(node))}
    return [ranks[node] for node in range(len(tree))]


def drawn_as_told(tree: DraftTree, key_at: Callable[[int], int]) -> bool:
    """True if every node's children are what its row and the noise give, in drawn order (faults, not malice)."""
    if tree.rows is None:
        return not len(tree)
    for node in range(ROOT, len(tree)):
        children = tree.children(node)
        row = tree.rows[node + 1]
        if not children:
            continue
        depth = 1 if node == ROOT else int(tree.depths[node]) + 1
        if row is None or row.draw(key_at(depth), len(children)) != tree.tokens[children].tolist():
            return False
    return True
