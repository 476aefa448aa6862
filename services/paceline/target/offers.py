"""The trees a session was offered lately, as the drafter's own probabilities have them, and what they were worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_NODES = 64  # of a tree that is asked for where the server chooses
TREES = 16  # remembered
MEMORY = 0.9  # weight that a tree keeps per round


class Offers:
    """The last trees, T of them, N nodes each: before they are cut, best nodes first. Compute thread only."""

    __slots__ = ("_next", "asked", "levels", "probs", "weights")

    def __init__(self) -> None:
        self.probs = np.zeros((TREES, MOST_NODES))  # [T, N] float64, chance of a node's path; 0 where there is none
        self.levels = np.zeros((TREES, MOST_NODES))  # [T, N] float64, of the leading nodes
        self.asked = np.zeros(TREES, dtype=np.int64)  # [T] nodes it can tell about; 0 where there is no tree
        self.weights = np.zeros(TREES)  # [T] float64
        self._next = 0

    @property
    def known(self) -> bool:
        """True once a tree was offered."""
        return bool(self.asked[0])

    def add(self, probs: NDArray[np.float64], depths: NDArray[np.int32], asked: int, *, whole: bool) -> None:
        """Takes a tree in.

        Args:
            probs: [nodes] float64, chance of each node's path.
            depths: [nodes] int32, of the nodes.
            asked: nodes that were asked for.
            whole: True if fewer nodes came since the drafter had no more, so that asking for more gives no more.
        """
        best = np.sort(probs)[::-1][:MOST_NODES]
        self.probs[self._next] = 0.0
        self.probs[self._next, : len(best)] = best
        deepest = np.maximum.accumulate(depths[:MOST_NODES])
        self.levels[self._next] = deepest[-1] if len(deepest) else 0.0
        self.levels[self._next, : len(deepest)] = deepest
        self.asked[self._next] = MOST_NODES if whole and len(best) < asked else asked
        self.weights[self._next] = 1.0
        self._next = (self._next + 1) % TREES

    @property
    def longest(self) -> int:
        """Nodes of the largest tree."""
        return int(np.count_nonzero(self.probs.any(axis=0)))

    def known_of(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[T, R] weights of the trees for what they tell of each size."""
        return self.weights[:, None] * (self.asked[:, None] >= sizes)

    def levels_of(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[R] mean levels of a tree of each size, at least those of the size before; 0 where none was offered."""
        weights = self.known_of(sizes)
        means = (self.levels[:, sizes - 1] * weights).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-30)
        return np.maximum.accumulate(means)

    def age(self) -> None:
        """A round has passed."""
        self.weights *= MEMORY

    def copy(self) -> Offers:
        """The same trees, for a session that begins with what others were offered."""
        other = Offers()
        other.probs[:], other.levels[:] = self.probs, self.levels
        other.asked[:], other.weights[:] = self.asked, self.weights
        other._next = self._next
        return other


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """Means a round: at M prices, of S sessions, with trees of each of R sizes asked for. Each [M, S, R] float64."""

    gain: NDArray[np.float64]  # tokens beyond the price of their nodes; rises along R where trees are cut
    tokens: NDArray[np.float64]  # accepted
    nodes: NDArray[np.float64]  # verified
    seconds: NDArray[np.float64]  # by which a pass is longer, after the nodes of the sessions before


def worth_of(
    offers: Sequence[Offers],
    trust: NDArray[np.float64],
    price: NDArray[np.float64],
    sizes: NDArray[np.int64],
    seconds: NDArray[np.float64],
    plain_tokens: int,
    *,
    cuts: bool,
) -> Worth:
    """What the trees offered would have brought at each size.

    A size is known from trees of that size or more; what more nodes bring than were ever asked for counts as nothing.

    Args:
        offers: of S sessions.
        trust: [S] float64, factors of their calibrations.
        price: [M, N] float64, tokens that the leading 1 to N nodes of a tree cost.
        sizes: [R] int64, ascending, the last one N.
        seconds: [plain_tokens + S N + 1 at least] float64, of a pass by its tokens.
        plain_tokens: of the pass without trees.
        cuts: whether the leading nodes are verified that bring most; else all of them are.
    """
    probs = np.stack([each.probs[:, : price.shape[1]] for each in offers])  # [S, T, N]
    tokens = np.minimum(probs * trust[:, None, None], 1.0).cumsum(axis=2)
    gain = tokens[None] - price[:, None, None, :]  # [M, S, T, N]
    last = sizes - 1
    if cuts:
        best = np.maximum.accumulate(gain, axis=3)
        ends = np.maximum.accumulate(np.where(gain >= best, np.arange(gain.shape[3]), 0), axis=3)[..., last]
    else:
        ends = np.broadcast_to(last, (*gain.shape[:3], len(sizes)))
    kept = np.take_along_axis(gain, ends, axis=3)  # [M, S, T, R]
    some = kept > 0 if cuts else np.ones_like(kept, dtype=bool)
    weights = np.stack([each.known_of(sizes) for each in offers])  # [S, T, R]
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)

    def means(values: NDArray[np.float64]) -> NDArray[np.float64]:
        added = np.diff(np.where(some, values, 0.0), axis=3, prepend=0.0)
        return (added * weights).sum(axis=2).cumsum(axis=2)

    nodes = means(ends + 1.0)
    before = plain_tokens + np.rint(nodes.cumsum(axis=1) - nodes).astype(np.int64)[:, :, None, :]
    longer = seconds[before + ends + 1] - seconds[before]
    accepted = means(np.take_along_axis(np.broadcast_to(tokens, gain.shape), ends, axis=3))
    return Worth(means(kept), accepted, nodes, means(longer))
