"""What draft trees have brought lately, by the number of nodes that were asked for.

A tree holds every smaller one, its leading nodes: one tree tells of its size and of all smaller sizes. Sizes are
compared within trees, each with the next smaller one: small trees are asked for where drafting goes badly, or well, and
beside trees of other times a size would look better or worse than it is.

What larger trees than any would have brought is guessed: of all sessions' trees, that further nodes bring what the last
ones brought; of one session's, that they bring beside the last ones what they bring others.
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
LEAST = 0.25  # nodes or tokens; by less than that trees are not said to be as many times better than others
NODES, TOKENS = 0, 1


class Gains:
    """Means over the last trees. Compute thread only."""

    __slots__ = ("_memory", "_smaller", "_sums", "_weights")

    def __init__(self, memory: float) -> None:
        """`memory`: weight that the past keeps per tree, below 1."""
        self._memory = memory
        self._sums = np.zeros((2, len(SIZES)))  # nodes verified, tokens accepted
        self._smaller = np.zeros((2, len(SIZES)))  # the same at the next smaller size, of the same trees
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
        for each in (self._sums, self._smaller, self._weights):
            each *= self._memory
        told = len(SIZES) if whole else int(np.searchsorted(SIZES, asked, side="right"))
        sizes = SIZES[:told]
        brought = np.stack((np.minimum(sizes, verified), np.searchsorted(places, sizes, side="left")))
        self._sums[:, :told] += brought
        self._smaller[:, 1:told] += brought[:, :-1]
        self._weights[:told] += 1.0

    def means(self) -> NDArray[np.float64]:
        """[2, R] nodes verified and tokens accepted a round, by size, where there are no others' trees to guess by."""
        found = np.empty((2, len(SIZES)))
        last = np.asarray([1.0, HOPED])  # what a node has added
        found[:, 0] = (self._sums[:, 0] + PRIOR * last) / (self._weights[0] + PRIOR)
        for at in range(1, len(SIZES)):
            below, nodes = found[:, at - 1], SIZES[at] - SIZES[at - 1]
            added = self._sums[:, at] - self._smaller[:, at]
            beside = self._smaller[:, at] + LEAST * self._weights[at]
            growth = (added + PRIOR * last * nodes) / (beside + PRIOR * (below + LEAST))
            found[:, at] = below + growth * (below + LEAST)
            last = (found[:, at] - below) / nodes
        return found


def means_beside(gains: Sequence[Gains], others: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Nodes verified and tokens accepted a round, by size, of each of S sessions.

    Args:
        gains: of each session.
        others: for each of them, [2, R] float64, the same of others' trees, to guess by.

    Returns:
        [S, 2, R] float64.
    """
    sums, smaller = np.stack([each._sums for each in gains]), np.stack([each._smaller for each in gains])
    weights, theirs = np.stack([each._weights for each in gains]), np.stack(others)
    found = np.empty_like(theirs)
    found[:, :, 0] = (sums[:, :, 0] + OTHERS * theirs[:, :, 0]) / (weights[:, 0, None] + OTHERS)
    added = sums - smaller
    beside = smaller + LEAST * weights[:, None]
    growth = np.diff(theirs, axis=2) / (theirs[:, :, :-1] + LEAST)
    for at in range(1, len(SIZES)):
        below = found[:, :, at - 1] + LEAST
        grown = (added[:, :, at] + OTHERS * growth[:, :, at - 1] * below) / (beside[:, :, at] + OTHERS * below)
        found[:, :, at] = found[:, :, at - 1] + grown * below
    return found
