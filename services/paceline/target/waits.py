"""How long passes have waited for trees lately, by the number of nodes that were asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.target.gains import SIZES

MEMORY = 0.8  # weight that the past keeps per wait for trees of that size
EASE = 0.995  # share of a wait that is believed a step later, where nobody has waited for such trees: it is tried again


class Waits:
    """Mean seconds. A size that was never waited for takes what the nearest known one below, or else above, took."""

    __slots__ = ("_known", "_seconds")

    def __init__(self) -> None:
        self._seconds = np.zeros(len(SIZES))
        self._known = np.zeros(len(SIZES), dtype=bool)

    def copy(self) -> Waits:
        """What is known so far, to go its own way."""
        made = Waits()
        made._seconds, made._known = self._seconds.copy(), self._known.copy()
        return made

    def learn(self, nodes: int, seconds: float) -> None:
        """Takes in how long a pass has waited for trees of so many nodes."""
        at = max(int(np.searchsorted(SIZES, nodes, side="right")) - 1, 0)
        before = self._seconds[at] if self._known[at] else seconds
        self.ease()
        self._seconds[at] = MEMORY * before + (1 - MEMORY) * seconds
        self._known[at] = True

    def ease(self) -> None:
        """A step has passed."""
        self._seconds *= EASE

    def at(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """[R] seconds for trees of these sizes, which are the leading ones; rises with them."""
        if not self._known.any():
            return np.zeros(len(sizes))
        known = np.flatnonzero(self._known)
        nearest = known[np.maximum(np.searchsorted(known, np.arange(len(sizes)), side="right") - 1, 0)]
        return np.maximum.accumulate(self._seconds[nearest])
