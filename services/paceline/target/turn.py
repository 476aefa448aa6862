"""What one session does in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from paceline.runtime.plan import Segment
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.served import HeldRow
from paceline.target.session import Session

NOTHING = DraftTree.empty()


class Step(Enum):
    """What a turn is for."""

    VERIFY = "verify"  # ends a round: a tree is walked, or a token drawn without one
    DRAW = "draw"  # a row pass: its token is emitted, and the round goes on below it
    HOLD = "hold"  # a row pass: its row is held to prune the tree by


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A session's part of a pass: its next pending tokens, then a tree below the last of them.

    Where a row is held no token is pending, and the tree grows from the last committed token. Without a tree such a
    turn needs no computation at all.
    """

    session: Session
    pending: int  # pending tokens in all; more than one while the prompt is read
    chunk: int  # how many of them are computed now
    tree: DraftTree = NOTHING
    fallback: Fallback | None = None  # why there is no tree although one was wanted
    step: Step = Step.VERIFY
    held: HeldRow | None = None  # the row at the context's end, if it need not be computed
    row_hit: bool = False  # `held` is from the row cache

    @property
    def draws(self) -> bool:
        """True if the row at the end of the context is known after it."""
        return self.held is not None or self.chunk == self.pending

    @property
    def tokens(self) -> int:
        """Tokens it adds to the pass."""
        return self.chunk + len(self.tree)

    @property
    def reads(self) -> bool:
        """True if it reads the prompt, or a part of it."""
        return self.pending > 1 and self.held is None


@dataclass(frozen=True, slots=True)
class Wait:
    """The session waits for its tree."""

    until: float  # seconds on the engine's clock; infinite: until something comes
    hold_until: float  # how long the others wait with it, so that all share a pass


def segment(turn: Turn, committed: int) -> Segment:
    """The turn as a segment of the pass; `committed` tokens of the context have KV."""
    session = turn.session
    assert session.sequence is not None
    if turn.chunk == 0:
        return Segment(session.sequence, turn.tree.tokens, turn.tree.parents, tuple(range(len(turn.tree))))
    tokens = session.context.copy(committed, committed + turn.chunk)
    if turn.chunk == 1 and turn.draws:
        return Segment.verification(session.sequence, int(tokens[0]), turn.tree)
    return Segment.chain(session.sequence, tokens, last_row=turn.draws)
