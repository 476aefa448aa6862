"""What a target says of its sessions, and what it is answered: the engine's own words, without a transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.proposer import DraftOptions
from paceline.speculation.rows import Row
from paceline.speculation.tree import DraftTree


class Fault(Enum):
    """Why a session cannot be drafted."""

    PROTOCOL = "protocol"
    CONTEXT_LIMIT = "context_limit"
    OVERLOADED = "overloaded"
    INTERNAL = "internal"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"


@dataclass(frozen=True, slots=True)
class Open:
    """Starts or restarts a session."""

    session: int
    epoch: int
    context: NDArray[np.int32]  # [length] int32, the complete context
    prompt_length: int
    tokenizer_fingerprint: str
    options: DraftOptions
    budget: int  # nodes of the first tree; 0 asks for none


@dataclass(frozen=True, slots=True)
class Advance:
    """Appends tokens; asks for a tree if `budget` is above 0."""

    session: int
    epoch: int
    base_length: int  # of the context before `tokens`
    tokens: Sequence[int]
    budget: int


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a session."""

    session: int
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class RowTold:
    """The target's row at the context; `drawn` is appended."""

    session: int
    epoch: int
    base_length: int  # of the context
    drawn: int | None
    row: Row | None
    budget: int  # nodes wanted below `drawn`; 0 asks for none


Update = Open | Advance | Close | RowTold


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer for one session: a tree for a context of `base_length`, or a fault."""

    session: int
    epoch: int
    base_length: int = 0
    tree: DraftTree | None = None
    growing: bool = False  # more levels of the tree are to come
    fault: Fault | None = None
    message: str = ""
