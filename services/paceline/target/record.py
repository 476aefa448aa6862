"""What a round did, for traces and studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback


@dataclass(frozen=True, slots=True, eq=False)
class RoundRecord:
    """One session's part of a pass that emitted tokens. Times are seconds on the engine's clock."""

    session: int
    request_id: str
    position: int  # position of the first token emitted
    tree: DraftTree  # as verified; empty in plain rounds
    accepted: tuple[int, ...]  # nodes the walk accepted, tokens cut at the reply's end included
    drawn: int | None  # None if the walk ended on an accepted end-of-sequence token
    delivered: tuple[int, ...]  # tokens the client got
    fallback: Fallback | None  # why the round was plain although a tree was wanted
    asked_at: float | None  # when the drafter was last asked for a tree
    tree_at: float | None  # when the last tree came
    started_at: float  # start of the pass
    ended_at: float  # end of the walk
    pass_tokens: int  # tokens of the whole pass, other sessions included


RoundObserver = Callable[[RoundRecord], None]
