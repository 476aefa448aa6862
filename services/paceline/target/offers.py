"""The trees a session was offered lately, as the drafter's own probabilities have them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_NODES = 64  # of a tree that is asked for where the server chooses
TREES = 16  # remembered
MEMORY = 0.9  # weight that a tree keeps per round


class Offers:
    """The last trees, T of them, N nodes each: before they are cut, best nodes first. Compute thread only."""

    __slots__ = ("_next", "asked", "probs", "weights")

    def __init__(self) -> None:
        self.probs = np.zeros((TREES, MOST_NODES))  # [T, N] float64, chance of a node's path; 0 where there is none
        self.asked = np.zeros(TREES, dtype=np.int64)  # [T] nodes it can tell about; 0 where there is no tree
        self.weights = np.zeros(TREES)  # [T] float64
        self._next = 0

    @property
    def known(self) -> bool:
        """True once a tree was offered."""
        return bool(self.asked[0])

    def add(self, probs: NDArray[np.float64], asked: int, *, whole: bool) -> None:
        """Takes a tree in.

        Args:
            probs: [nodes] float64, chance of each node's path, in any order.
            asked: nodes that were asked for.
            whole: True if fewer nodes came since the drafter had no more, so that asking for more gives no more.
        """
        best = np.sort(probs)[::-1][:MOST_NODES]
        self.probs[self._next] = 0.0
        self.probs[self._next, : len(best)] = best
        self.asked[self._next] = MOST_NODES if whole and len(best) < asked else asked
        self.weights[self._next] = 1.0
        self._next = (self._next + 1) % TREES

    def age(self) -> None:
        """A round has passed."""
        self.weights *= MEMORY

    def copy(self) -> Offers:
        """The same trees, for a session that begins with what others were offered."""
        other = Offers()
        other.probs[:], other.asked[:], other.weights[:] = self.probs, self.asked, self.weights
        other._next = self._next
        return other
