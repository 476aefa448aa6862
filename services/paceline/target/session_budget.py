"""What is known of one session's trees, where the server chooses their size."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.tree import ROOT, DraftTree
from paceline.target.calibration import Calibration
from paceline.target.context import Context
from paceline.target.offers import Offers

FIRST_PAUSE, LONGEST_PAUSE = 4, 16  # rounds at budget 0 between trees that are only followed


@dataclass(slots=True)
class Kind:
    """What the trees of sessions with the same kind of proposals were worth lately."""

    offers: Offers = field(default_factory=Offers)
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True, slots=True, eq=False)
class Offered:
    """A tree before it was cut."""

    probs: NDArray[np.float64]  # [nodes] float64, chance of each node's path
    depths: NDArray[np.int32]  # [nodes] int32
    whole: bool  # it was drafted for this very context and complete


@dataclass(slots=True, eq=False)
class Followed:
    """A tree that was asked for without waiting for it, to see whether it would have been right."""

    base_length: int  # context length it grows from
    nodes: int  # asked for
    tree: DraftTree | None = None  # None until it comes

    def matched(self, context: Context) -> int | None:
        """Tokens after the base that the tree holds as one path; None while that is not known."""
        if self.tree is None:
            return None
        node = ROOT
        for matched, token in enumerate(context.copy(self.base_length).tolist()):
            child = self.tree.child(node, token)
            if child is None:
                return matched
            node = child
        return None if self.tree.children(node) else len(context) - self.base_length


class SessionBudget:
    """State of one session. Compute thread only."""

    __slots__ = ("followed", "kind", "offered", "offers", "pause")

    def __init__(self, kind: Kind | None, offers: Offers) -> None:
        self.kind = kind  # what its trees teach for others; None: nothing
        self.offers = offers
        self.pause = FIRST_PAUSE
        self.offered: Offered | None = None  # in the round that is under way
        self.followed: Followed | None = None

    def rested(self) -> None:
        """A tree was asked for after a pause; the next pause is longer."""
        self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def looked(self, *, right: bool) -> None:
        """The tree that was followed is known; if any of it was right the next one is followed soon."""
        self.followed = None
        if right:
            self.pause = FIRST_PAUSE

    def drafts(self) -> None:
        """A tree is asked for because it pays; the next pause is shorter."""
        self.pause = max(self.pause // 2, FIRST_PAUSE)

    def learn(self, offered: Offered, asked: int) -> None:
        """Takes a tree in, see `Offers.add`."""
        for offers in (self.offers,) if self.kind is None else (self.offers, self.kind.offers):
            offers.add(offered.probs, offered.depths, asked, whole=offered.whole)
