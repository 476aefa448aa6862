"""Pauses between tries, growing and jittered so that many replicas do not come back in step."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Doubling pauses with jitter."""

    def __init__(self, first_s: float, longest_s: float, random: Callable[[], float]) -> None:
        """`random` gives numbers in [0, 1)."""
        self._first_s, self._longest_s, self._random = first_s, longest_s, random
        self._tries = 0

    def next_s(self) -> float:
        """Seconds of the next pause: half to all of the doubled one before, up to the longest."""
        pause_s = min(self._first_s * 2.0 ** min(self._tries, 60), self._longest_s)
        self._tries += 1
        return pause_s * (0.5 + 0.5 * self._random())

    def reset(self) -> None:
        """It worked: the next pause is the first again."""
        self._tries = 0
