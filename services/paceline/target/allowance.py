"""What looking for better than plain decoding may still cost, at one load."""

from __future__ import annotations

import math

SHARE = 0.03  # of a plain step, that each step adds: the most that drafting loses in the long run
MOST = 24.0  # plain steps that are kept at most beside one session: luck alone moves so much within a reply
HELD_UP = 4.0  # plain steps that one step loses at most: one that took longer was held up by something else


class Allowance:
    """Counts in plain steps. Whatever drafting gains is put by, so that where it pays it may lose for a while."""

    __slots__ = ("_most", "_steps")

    def __init__(self, sessions: int) -> None:
        """`sessions` in a step: the more there are the less luck has to do with what a step brings each."""
        self._most = self._steps = MOST / math.sqrt(sessions)

    @property
    def left(self) -> bool:
        """True if more may be tried."""
        return self._steps >= 0

    def earn(self) -> None:
        """A step has passed."""
        self._add(0.0)

    def account(self, tokens: float, seconds: float, plain_s: float) -> None:
        """A step with drafts, or beside a tree that nobody waits for, has ended.

        Args:
            tokens: emitted, for each of its sessions.
            seconds: it took, waits for trees included.
            plain_s: seconds of a plain step of these sessions.
        """
        if plain_s > 0:
            self._add(max(tokens - seconds / plain_s, -HELD_UP))

    def _add(self, steps: float) -> None:
        self._steps = min(max(self._steps + SHARE + steps, -HELD_UP), self._most)
