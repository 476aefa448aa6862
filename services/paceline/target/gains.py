"""What draft trees have brought lately, by the number of nodes that were asked for.

Drafters say how likely their nodes are. What they have promised varies less than what was accepted, which is luck as
well: tokens are the mean of what was promised, times the share of promises that was kept.

A tree holds every smaller one, its leading nodes: one tree tells of its size and of all smaller sizes. Sizes are
compared within trees, each with the next smaller one: small trees are asked for where drafting goes badly, or well, and
beside trees of other times a size would look better or worse than it is.

What larger trees than any would have brought is guessed: of all sessions' trees, that further nodes bring what the last
ones brought; of one session's, that they bring beside the last ones what they bring others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_NODES = 64  # of a tree that is asked for where the server chooses
SIZES = np.asarray((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_NODES))  # sizes that are chosen among; R of them
HOPED = 0.5  # tokens a node of the first trees is hoped to promise; enough for them to be tried
PRIOR = 0.5  # trees; weight of a guess where there are no others' trees
OTHERS = 4.0  # trees; weight of a guess by others' trees: one tree that was wrong says little of a session
KEPT = 1.0  # tokens; weight of the guess that all promises are kept, where there are no others' trees
FADED = 0.1  # trees, by weight, below which nothing is known of a size any more
LEAST = 0.25  # nodes or tokens; by less than that trees are not said to be as many times better than others
NODES, PROMISED = 0, 1


@dataclass(frozen=True, slots=True)
class Means:
    """Of rounds with trees, by size. The leading axes are those of what they are of."""

    nodes: NDArray[np.float64]  # [..., R] verified
    promised: NDArray[np.float64]  # [..., R] tokens, by the drafter
    kept: NDArray[np.float64]  # [..., R] share of them that is accepted

    @property
    def tokens(self) -> NDArray[np.float64]:  # [..., R]
        """Accepted a round."""
        return self.promised * self.kept


class Gains:
    """Sums over the last trees. Compute thread only."""

    __slots__ = ("_accepted", "_means", "_memory", "_smaller", "_sums", "_weights")

    def __init__(self, memory: float) -> None:
        """`memory`: weight that the past keeps per tree, below 1."""
        self._memory = memory
        self._sums = np.zeros((2, len(SIZES)))  # nodes verified, tokens promised by them
        self._smaller = np.zeros((2, len(SIZES)))  # the same at the next smaller size, of the same trees
        self._accepted = np.zeros(len(SIZES))  # tokens
        self._weights = np.zeros(len(SIZES))
        self._means: Means | None = None  # as they are known, since nothing was learned

    @property
    def largest(self) -> int:
        """The largest size of which anything is known; 0 if nothing is."""
        known = np.count_nonzero(self._weights >= FADED)  # the smaller the more trees tell of it
        return int(SIZES[known - 1]) if known else 0

    def learn(self, places: NDArray[np.int64], probs: NDArray[np.float64], asked: int, *, whole: bool) -> None:
        """Takes a tree in.

        Args:
            places: [accepted] int64, places of the accepted nodes in the tree, counted from 0 and ascending.
            probs: [verified] float64, of the paths of its nodes that were in the pass, by the drafter.
            asked: nodes that were asked for.
            whole: True if the drafter had no more, so that asking for more gives no more.
        """
        for each in (self._sums, self._smaller, self._accepted, self._weights):
            each *= self._memory
        told = len(SIZES) if whole else int(np.searchsorted(SIZES, asked, side="right"))
        sizes = SIZES[:told]
        verified = np.minimum(sizes, len(probs))
        held = np.stack((verified, np.concatenate(([0.0], probs.cumsum()))[verified]))
        self._sums[:, :told] += held
        self._smaller[:, 1:told] += held[:, :-1]
        self._accepted[:told] += np.searchsorted(places, sizes, side="left")
        self._weights[:told] += 1.0
        self._means = None

    def means(self) -> Means:
        """What is known where there are no others' trees to guess by; the arrays are [R]."""
        if self._means is None:
            self._means = self._found()
        return self._means

    def _found(self) -> Means:
        found, kept = np.empty((2, len(SIZES))), np.empty(len(SIZES))
        known = self._known
        last = np.asarray([1.0, HOPED])  # what a node has added
        found[:, 0] = (self._sums[:, 0] + PRIOR * last) / (self._weights[0] + PRIOR)
        kept[0] = (self._accepted[0] + KEPT) / (self._sums[PROMISED, 0] + KEPT)
        for at in range(1, len(SIZES)):
            guess = known[at] + (1.0 - known[at]) * kept[at - 1]
            kept[at] = (self._accepted[at] + KEPT * guess) / (self._sums[PROMISED, at] + KEPT)
            below, nodes = found[:, at - 1], SIZES[at] - SIZES[at - 1]
            added = self._sums[:, at] - self._smaller[:, at]
            beside = self._smaller[:, at] + LEAST * self._weights[at]
            growth = (added + PRIOR * last * nodes) / (beside + PRIOR * (below + LEAST))
            found[:, at] = below + growth * (below + LEAST)
            last = (found[:, at] - below) / nodes
        return Means(found[NODES], found[PROMISED], kept)

    @property
    def _known(self) -> NDArray[np.float64]:  # [R]
        """Share of the trees that told of each size."""
        return np.ones(len(SIZES)) if self._weights[0] == 0 else self._weights / self._weights[0]


def means_beside(gains: Sequence[Gains], others: Sequence[Means]) -> Means:
    """What is known of each of S sessions; the arrays are [S, R].

    Args:
        gains: of each session.
        others: of others' trees, for each session, to guess by.
    """
    sums, smaller = np.stack([each._sums for each in gains]), np.stack([each._smaller for each in gains])
    weights, accepted = np.stack([each._weights for each in gains]), np.stack([each._accepted for each in gains])
    theirs = np.stack([(each.nodes, each.promised) for each in others])
    found = np.empty_like(theirs)
    found[:, :, 0] = (sums[:, :, 0] + OTHERS * theirs[:, :, 0]) / (weights[:, 0, None] + OTHERS)
    added = sums - smaller
    beside = smaller + LEAST * weights[:, None]
    growth = np.diff(theirs, axis=2) / (theirs[:, :, :-1] + LEAST)
    for at in range(1, len(SIZES)):
        below = found[:, :, at - 1] + LEAST
        grown = (added[:, :, at] + OTHERS * growth[:, :, at - 1] * below) / (beside[:, :, at] + OTHERS * below)
        found[:, :, at] = found[:, :, at - 1] + grown * below
    kept, known = np.stack([each.kept for each in others]), np.stack([each._known for each in gains])
    beyond = np.ones(len(gains))  # times as many as others that are kept, to guess by for sizes of which less is known
    for at in range(len(SIZES)):
        guess = OTHERS * kept[:, at] * (known[:, at] + (1.0 - known[:, at]) * beyond)
        own = (accepted[:, at] + guess) / (sums[:, PROMISED, at] + OTHERS)
        beyond, kept[:, at] = own / kept[:, at], own
    return Means(found[:, NODES], found[:, PROMISED], kept)
