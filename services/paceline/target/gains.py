"""What draft trees have brought lately, by the number of nodes that were asked for.

A tree holds every smaller one, its leading nodes: one tree tells of its size and of all smaller sizes. What larger ones
would have brought is guessed: of all sessions' trees, that further nodes bring what the last ones brought; of one
session's, that they bring beside the last ones what they bring others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_NODES = 64  # of a tree that is asked for where the server chooses
SIZES = np.asarray((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_NODES))  # sizes that are chosen among; R of them
HOPED = 0.5  # tokens a node of the first trees is hoped to bring; enough for them to be tried
PRIOR = 0.5  # trees; weight of a guess where there are no others' trees
OTHERS = 4.0  # trees; weight of a guess by others' trees: one tree that was wrong says little of a session
FADED = 0.1  # trees, by weight, below which nothing is known of a size any more
NODES, TOKENS = 0, 1


class Gains:
    """Means over the last trees. Compute thread only."""

    __slots__ = ("_memory", "_sums", "_weights")

    def __init__(self, memory: float) -> None:
        """`memory`: weight that the past keeps per tree, below 1."""
        self._memory = memory
        self._sums = np.zeros((2, len(SIZES)))  # nodes verified, tokens accepted
        self._weights = np.zeros(len(SIZES))

    @property
    def largest(self) -> int:
        """The largest size of which anything is known; 0 if nothing is."""
        known = np.flatnonzero(self._weights >= FADED)
        return int(SIZES[known[-1]]) if len(known) else 0

    def learn(self, places: NDArray[np.int64], verified: int, asked: int, *, whole: bool) -> None:
        """Takes a tree in.

        Args:
            places: [accepted] int64, places of the accepted nodes in the tree, counted from 0 and ascending.
            verified: nodes that were in the pass.
            asked: nodes that were asked for.
            whole: True if the drafter had no more, so that asking for more gives no more.
        """
        self._sums *= self._memory
        self._weights *= self._memory
        told = len(SIZES) if whole else int(np.searchsorted(SIZES, asked, side="right"))
        sizes = SIZES[:told]
        self._sums[NODES, :told] += np.minimum(sizes, verified)
        self._sums[TOKENS, :told] += np.searchsorted(places, sizes, side="left")
        self._weights[:told] += 1.0

    def means(self) -> NDArray[np.float64]:
        """[2, R] nodes verified and tokens accepted a round, by size, where there are no others' trees to guess by."""
        found = np.empty((2, len(SIZES)))
        guess = last = np.asarray([1.0, HOPED])  # last: what a node has added
        for at, weight in enumerate(self._weights.tolist()):
            found[:, at] = (self._sums[:, at] + PRIOR * guess) / (weight + PRIOR)
            if at + 1 < len(SIZES):
                if at:
                    last = (found[:, at] - found[:, at - 1]) / (SIZES[at] - SIZES[at - 1])
                guess = found[:, at] + np.maximum(last, 0.0) * (SIZES[at + 1] - SIZES[at])
        return found


def means_beside(gains: Sequence[Gains], others: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Nodes verified and tokens accepted a round, by size, of each of S sessions.

    Args:
        gains: of each session.
        others: for each of them, [2, R] float64, the same of others' trees, to guess by.

    Returns:
        [S, 2, R] float64.
    """
    sums, weights = np.stack([each._sums for each in gains]), np.stack([each._weights for each in gains])
    theirs = np.stack(others)
    found = np.empty_like(theirs)
    more = theirs[:, :, 1:] / np.maximum(theirs[:, :, :-1], 1e-9)  # times what the size below has brought
    guess = theirs[:, :, 0]
    for at in range(len(SIZES)):
        found[:, :, at] = (sums[:, :, at] + OTHERS * guess) / (weights[:, at, None] + OTHERS)
        if at + 1 < len(SIZES):
            guess = found[:, :, at] * more[:, :, at]
    return found
