"""How a session ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why a reply ended."""

    STOP = "stop"  # an end-of-sequence token, or a stop string
    LENGTH = "length"  # max_tokens, or the context limit


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What speculation did for a reply. Tokens cut at the end are not counted as accepted.

    Tokens delivered = sum over rounds of (accepted + 1), less those held back, cut at the end.
    """

    rounds: int = 0  # passes that emitted at least one token
    drafted: int = 0  # draft nodes verified
    accepted: int = 0  # draft tokens delivered
    fallbacks: Mapping[str, int] = field(default_factory=dict)  # plain rounds although a tree was wanted, by reason
    relaxed: int = 0  # draft tokens delivered that only the nucleus rule accepted, earlier replicas' included
    deviation_spent: float = 0.0  # Ledger.spent, earlier replicas' included
    limits: Mapping[str, int] = field(default_factory=dict)  # nodes where a limit kept relaxing off, by limit
    selections: Mapping[str, int] = field(default_factory=dict)  # rounds by selection rule
    budgets: Mapping[int, int] = field(default_factory=dict)  # rounds by draft nodes asked for, where the target chose
    row_passes: int = 0  # passes of one token for a row
    row_hits: int = 0  # rows taken from the row cache
    nucleus: bool = False  # whether the nucleus rule could accept
    held_back: int = 0  # drawn tokens that were not emitted, to hold their row
    strength: float = 0.0  # coupling strength of the last trees; 0 where there were none, or not coupled


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a reply."""

    reason: FinishReason
    stop_match: str  # the stop string that matched, or ""
    prompt_tokens: int
    completion_tokens: int  # tokens delivered by earlier replicas included
    stats: SessionStats
    ttft_s: float  # from accepting the request to its first token; 0 if this replica delivered none
    total_s: float  # from accepting the request to its end
