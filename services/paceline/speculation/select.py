"""Which nodes a tree spends its budget on: best-first by path probability (THEORY 5).

Best-first is optimal because a path never scores above its parent. Order: score, lower depth, lower parent index,
lower token id. A candidate of probability 0 is never taken. Scores are float64 sums of log-probabilities: products
would underflow in deep trees. Sums that differ by rounding alone count as equal, as the products would be.

A drafter that looks below nodes level by level calls `best_first` again after each level: it answers `expand` from the
candidates it has, with none for a node it has not looked below, and next looks below the best of those.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from paceline.speculation.propose import Candidates, ranked
from paceline.speculation.rows import Row
from paceline.speculation.tree import ROOT, DraftTree

_SCORE_DIGITS = 9  # decimals of a log-score that count: rounding is far below, real differences are far above

Path = tuple[int, ...]  # tokens from the first level down; empty for the root


def best_first(
    expand: Callable[[Path], Candidates], budget: int, max_depth: int, min_log_score: float = -math.inf
) -> DraftTree:
    """The best-first tree of a drafter that has every candidate at hand; its nodes stand in best-first order.

    Args:
        expand: candidates below a path; asked at most once for each taken node and the root.
        budget: most nodes.
        max_depth: most levels.
        min_log_score: paths whose log-probability is lower are left out.
    """
    heap: list[tuple[float, int, int, int, float, float]] = []  # order: -score, depth, parent, token; log-prob., score
    paths: list[Path] = []
    tokens: list[int] = []
    parents: list[int] = []
    log_probs: list[float] = []

    def offer(node: int, path: Path, score: float) -> None:
        left = budget - len(tokens)
        if left <= 0 or len(path) >= max_depth:
            return
        candidates = expand(path)  # best first, so no more than the first `left` can be taken
        best = zip(candidates.tokens[:left].tolist(), candidates.log_probs[:left].tolist(), strict=True)
        for token, log_prob in best:
            if log_prob == -math.inf or score + log_prob < min_log_score:
                break
            total = score + log_prob
            heapq.heappush(heap, (-round(total, _SCORE_DIGITS), len(path) + 1, node, token, log_prob, total))

    offer(ROOT, (), 0.0)
    while heap and len(tokens) < budget:
        _, _, parent, token, log_prob, score = heapq.heappop(heap)
        node, path = len(tokens), (*(() if parent == ROOT else paths[parent]), token)
        paths.append(path)
        tokens.append(token)
        parents.append(parent)
        log_probs.append(min(log_prob, 0.0))  # rounding may leave a certain token a hair above 0
        offer(node, path, score)
    return DraftTree.build(tokens, parents, log_probs)


def prune(tree: DraftTree, budget: int, log_probs: Sequence[float] | None = None) -> DraftTree:
    """The `budget` best nodes of `tree` by path score, in best-first order.

    Args:
        tree: a larger candidate tree.
        budget: most nodes.
        log_probs: log-probability of each node given its parent; the tree's own unless given.

    Raises ValueError if neither is known.
    """
    known = tree.log_probs if log_probs is None else log_probs
    if known is None:
        raise ValueError("the tree carries no log-probabilities to prune by")
    below: dict[Path, list[int]] = {}
    paths: list[Path] = []
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        above = () if parent == ROOT else paths[parent]
        paths.append((*above, token))
        below.setdefault(above, []).append(node)

    def expand(path: Path) -> Candidates:
        nodes = below.get(path, [])
        return ranked(tree.tokens[nodes], np.asarray([known[node] for node in nodes], dtype=np.float64), len(nodes))

    return best_first(expand, budget, len(tree))


def rerank(tree: DraftTree, row: Row, budget: int) -> DraftTree:
    """The `budget` best nodes of `tree` by path score, with the target's own row for the first token.

    The score of a path is p(first token | context) times the drafter's probabilities of the rest.
    Source: Lee et al., Understanding Target Probability Reuse, arXiv 2610.29210.

    Args:
        tree: the drafter's candidates, usually more than `budget`, with log-probabilities.
        row: the target's row at the context.
        budget: most nodes.
    """
    if tree.log_probs is None:
        raise ValueError("the tree carries no log-probabilities to prune by")
    log_probs = tree.log_probs.astype(np.float64)
    for node in tree.children(ROOT):
        prob = row.prob(int(tree.tokens[node]))
        log_probs[node] = math.log(prob) if prob > 0 else -math.inf
    return prune(tree, budget, log_probs.tolist())
