"""Why a round was decoded plainly although a tree was wanted."""

from __future__ import annotations

from enum import StrEnum


class Fallback(StrEnum):
    """Reason of a fallback, as counted in statistics. An empty tree is not one: the proposer had nothing to say."""

    ABSENT = "absent"  # no drafter is known
    LOST = "lost"  # the connection to the drafter broke
    LATE = "late"  # the tree did not come by the deadline
    SUSPENDED = "suspended"  # several deadlines were missed in a row; the drafter is not waited for
    INVALID = "invalid"  # the tree, or the order of frames, broke the rules of the wire
    EVICTED = "evicted"  # the drafter holds no slot for the session
    CONTEXT_LIMIT = "context_limit"  # the context is longer than the drafter takes
    LOAD = "load"  # the pass had no room, or no use, for draft nodes
    TOKENIZER_MISMATCH = "tokenizer_mismatch"  # the drafter has another tokenizer
    INTERNAL = "internal"  # the proposer failed
