"""The engine's side of a drafter, free of transports: what goes out, what comes in.

The engine owns all state of drafting (epochs, lengths, deadlines). A port only carries: it drops what belongs to an
earlier connection and validates what comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.request import DraftWish


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """Starts or restarts a session at the drafter from a complete context."""

    session: int
    epoch: int
    context: NDArray[np.int32]  # [length] int32, a copy that nobody changes
    prompt_length: int
    wish: DraftWish
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]  # tokens a tree does not grow below; empty where the request ignores them
    learn: bool  # whether the drafter may learn from this text for other sessions
    budget: int  # nodes wanted of the first tree; 0 asks for none
    strength: float = 0.0  # coupling strength; 0 where proposals are not coupled


@dataclass(frozen=True, slots=True, eq=False)
class Advance:
    """Appends emitted tokens and asks for the next tree."""

    session: int
    epoch: int
    base_length: int  # context length before `tokens`
    tokens: NDArray[np.int32]  # [n] int32, a copy that nobody changes
    budget: int  # nodes wanted; 0 asks for none


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a session at the drafter."""

    session: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class RowTold:
    """Tells the target's row at the context, and the token drawn from it if it was emitted."""

    session: int
    epoch: int
    base_length: int  # length of the context the row belongs to
    drawn: int | None  # appended to the context
    row: Row  # its most probable tokens
    budget: int  # nodes wanted below `drawn`; 0 asks for none, and leaves what was asked for as it is


Update = Open | Advance | Close | RowTold


class DraftPort(Protocol):
    """Carries updates to a drafter. Called in the compute thread, never blocks."""

    def send(self, generation: int, updates: Sequence[Update]) -> bool:
        """Queues one frame. False if the queue is full: nothing of it will be sent.

        A frame for another connection than the current one (`generation`, see LinkUp) is dropped and counts as sent:
        LinkDown is on its way then.
        """


class NoDrafter:
    """The port of a target without drafters."""

    def send(self, generation: int, updates: Sequence[Update]) -> bool:
        """Drops everything."""
        return True


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A drafter is reached; every session may be opened there."""

    generation: int  # number of the connection
    proposer: str = ""  # its kind


@dataclass(frozen=True, slots=True)
class LinkDown:
    """No drafter is reached; every session falls back."""

    reason: Fallback  # ABSENT, LOST or TOKENIZER_MISMATCH


@dataclass(frozen=True, slots=True, eq=False)
class TreeArrived:
    """A validated tree."""

    session: int
    epoch: int
    base_length: int
    tree: DraftTree
    at: float  # when it was read, seconds on the engine's clock
    growing: bool = False  # more levels of it are to come


class Retry(Enum):
    """What to do after a fault."""

    ASK = "ask"  # ask again in the next round; the drafter still holds the session
    REOPEN = "reopen"  # open the session afresh in the next round; after a pause if that does not help
    LATER = "later"  # open it afresh after a pause that grows
    NEVER = "never"  # leave it until another connection


@dataclass(frozen=True, slots=True)
class DraftFault:
    """Something other than a good tree came for a session."""

    session: int
    epoch: int
    reason: Fallback
    retry: Retry
    text: str  # for the log


DraftEvent = LinkUp | LinkDown | TreeArrived | DraftFault
