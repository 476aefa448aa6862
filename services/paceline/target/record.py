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
    drawn: int | None  # None if the walk ended on an accepted end-of-sequence token, or the token was held back
    delivered: tuple[int, ...]  # tokens the client got
    fallback: Fallback | None  # why the round was plain although a tree was wanted
    asked_at: float | None  # when the drafter was last asked for a tree
    tree_at: float | None  # when the last tree came
    started_at: float  # start of the pass
    ended_at: float  # end of the walk
    pass_tokens: int  # tokens of the whole pass, other sessions included; 0 if none was needed
    rule: str = "plain"  # selection rule of the round
    reason: str = ""  # why that rule, where it was chosen here
    budget: int = 0  # draft nodes asked for
    budget_reason: str = ""  # why so many, where it was chosen here
    relaxed: tuple[int, ...] = ()  # accepted nodes that only the nucleus rule accepted
    focused: bool = False  # the tree grew below a token drawn before it
    deviation_spent: float = 0.0  # by the reply so far
    relaxed_tokens: int = 0  # delivered by the reply so far


RoundObserver = Callable[[RoundRecord], None]
