"""What one session does in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.runtime.plan import Segment
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.session import Session

NOTHING = DraftTree.empty()


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A session's part of a pass: its next pending tokens, then a tree below the last of them."""

    session: Session
    pending: int  # pending tokens in all; more than one while the prompt is read
    chunk: int  # how many of them are computed now
    tree: DraftTree = NOTHING
    fallback: Fallback | None = None  # why there is no tree although one was wanted

    @property
    def draws(self) -> bool:
        """True if the pass reaches the end of the context, so that a token can be drawn."""
        return self.chunk == self.pending

    @property
    def tokens(self) -> int:
        """Tokens it adds to the pass."""
        return self.chunk + len(self.tree)


@dataclass(frozen=True, slots=True)
class Wait:
    """The session waits for its tree."""

    until: float  # seconds on the engine's clock


def segment(turn: Turn, committed: int) -> Segment:
    """The turn as a segment of the pass; `committed` tokens of the context have KV."""
    session = turn.session
    assert session.sequence is not None
    tokens = session.context.copy(committed, committed + turn.chunk)
    if turn.chunk == 1 and turn.draws:
        return Segment.verification(session.sequence, int(tokens[0]), turn.tree)
    return Segment.chain(session.sequence, tokens, last_row=turn.draws)
