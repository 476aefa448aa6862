"""What is known of one session's trees, where the server chooses their size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.tree import ROOT, DraftTree
from paceline.target.calibration import Calibration
from paceline.target.context import Context
from paceline.target.gains import Gains

FIRST_PAUSE, LONGEST_PAUSE = 4, 16  # rounds at budget 0 between trees that are only followed
LOOK_EVERY = 16  # rounds with a tree
MEMORY, KIND_MEMORY = 0.95, 0.99  # weight that the past keeps per tree, for a session and for its kind


@dataclass(slots=True)
class Kind:
    """What the trees of sessions with the same kind of proposals have brought lately."""

    gains: Gains = field(default_factory=lambda: Gains(KIND_MEMORY))
    calibration: Calibration = field(default_factory=Calibration)
    pause: int = FIRST_PAUSE  # of the session that was tried last, if it shares


@dataclass(frozen=True, slots=True, eq=False)
class Offered:
    """A tree before it was cut, or one that is followed without waiting for it."""

    base_length: int  # context length it grows from
    asked: int  # nodes
    tree: DraftTree | None = None  # None until it comes
    whole: bool = False  # it was drafted for this very context, and the drafter had no more

    def places(self, context: Context, most: int | None = None) -> NDArray[np.int64] | None:
        """Places of the nodes that the tokens after the base have taken, at most so many; None while more may follow.

        With `most` given the answer is never None.
        """
        if self.tree is None:
            return None
        node, places, left = ROOT, list[int](), False
        for token in context.copy(self.base_length)[:most].tolist():
            child = self.tree.child(node, token)
            if child is None:
                left = True
                break
            places.append(child)
            node = child
        ended = left or most is not None or not self.tree.children(node)
        return np.asarray(places, dtype=np.int64) if ended else None


class SessionBudget:
    """State of one session. Compute thread only."""

    __slots__ = ("_drafted", "followed", "gains", "heard", "kind", "looks", "offered", "pause", "shares", "unread")

    def __init__(self, kind: Kind, *, shares: bool) -> None:
        """`shares`: whether others of its kind learn from its trees."""
        self.kind, self.shares = kind, shares
        self.gains = Gains(MEMORY)
        self.pause = max(kind.pause // 2, FIRST_PAUSE) if shares else FIRST_PAUSE
        self._drafted = 0  # rounds with a tree
        self.looks = False  # its round is to tell what more nodes bring than are asked for otherwise
        self.offered: Offered | None = None  # in the round that is under way
        self.followed: Offered | None = None
        self.heard = False  # a tree of it has come
        self.unread = False  # what is followed comes once the drafter has read the prompt

    @property
    def largest(self) -> int:
        """Nodes of the largest tree of which anything is known, of its own or of its kind; 0 if nothing is."""
        return max(self.gains.largest, self.kind.gains.largest)

    def learn(self, offered: Offered, places: NDArray[np.int64], probs: NDArray[np.float64]) -> None:
        """Takes a tree in, see `Gains.learn`. If any of it was right, one is tried soon after a pause."""
        if len(places):
            self._rest(FIRST_PAUSE)
        if self.shares:
            self.kind.calibration.learn(float(probs.sum()), len(places))
        for gains in (self.gains, self.kind.gains) if self.shares else (self.gains,):
            gains.learn(places, probs, offered.asked, whole=offered.whole)

    def rested(self) -> None:
        """A tree was asked for after a pause; the next pause is longer."""
        self._rest(min(2 * self.pause, LONGEST_PAUSE))

    def _rest(self, pause: int) -> None:
        self.pause = pause
        if self.shares:
            self.kind.pause = pause

    def drafts(self, *, may_look: bool) -> None:
        """A tree is asked for because it pays; the next pause is shorter.

        Now and then it `looks`, if it may: a tree of up to twice the size is asked for and followed whole, soon at
        first.
        """
        self.pause = max(self.pause // 2, FIRST_PAUSE)
        if self.followed is not None and self.followed.tree is None:
            self.followed = None  # the drafter leaves it for the tree that is asked for now
        self._drafted += 1
        self.looks = may_look and (self._drafted.bit_count() == 1 or self._drafted % LOOK_EVERY == 0)
