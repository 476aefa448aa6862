"""What looking for better than plain decoding may still cost, at one load."""

from __future__ import annotations

SHARE = 0.03  # of the tokens of plain steps: the most that drafting loses in the long run
MOST = 24.0  # tokens that are put by at most: luck alone moves as much within a reply
HELD_UP = 4.0  # plain steps that one step loses at most: one that took longer was held up by something else


class Allowance:
    """Counts tokens of all sessions. What drafting gains is put by, so that where it pays it may lose for a while."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = MOST

    @property
    def left(self) -> bool:
        """True if more may be tried."""
        return self._tokens >= 0

    def stepped(self, sessions: int) -> None:
        """A plain step of so many sessions has ended."""
        self._add(SHARE * sessions)

    def tried(self, sessions: int, emitted: int, seconds: float, plain_s: float) -> None:
        """A step with drafts, or beside a tree that nobody waits for, has ended.

        Args:
            sessions: in it.
            emitted: tokens of them all.
            seconds: it took, waits for trees included.
            plain_s: seconds of a plain step of these sessions, above 0.
        """
        self._add(emitted + sessions * (SHARE - min(seconds / plain_s, 1 + HELD_UP)))

    def _add(self, tokens: float) -> None:
        self._tokens = min(self._tokens + tokens, MOST)
