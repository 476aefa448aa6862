"""When to stop waiting for somebody who keeps missing deadlines."""

from __future__ import annotations


class Lapse:
    """Counts deadlines missed in a row; at `limit` the other side is suspended until it meets one again."""

    __slots__ = ("_limit", "_missed")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._missed = 0

    @property
    def suspended(self) -> bool:
        """True if the other side is not to be waited for."""
        return self._missed >= self._limit

    def missed(self) -> None:
        """A deadline passed without an answer."""
        self._missed += 1

    def met(self) -> None:
        """An answer came in time."""
        self._missed = 0
