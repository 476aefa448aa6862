"""The moment after which nobody waits for a reply."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from paceline.errors import DeadlineExceeded


class Deadline:
    """A moment on a monotonic clock, or never."""

    def __init__(self, after_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`after_s` counts from now; None is never."""
        self._clock, self._after_s = clock, after_s
        self._ends = math.inf if after_s is None else clock() + after_s

    @classmethod
    def earliest(cls, *after_s: float | None, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """The first of several; None stands for never."""
        return cls(min((seconds for seconds in after_s if seconds is not None), default=None), clock)

    def left_s(self) -> float | None:
        """Seconds left, None for never. Raises DeadlineExceeded if none are."""
        if self._ends == math.inf:
            return None
        left_s = self._ends - self._clock()
        if left_s <= 0:
            raise DeadlineExceeded(f"the request's deadline of {max(self._after_s or 0, 0):g} s passed")
        return left_s

    def at_most(self, limit_s: float) -> float:
        """Seconds left, `limit_s` at most. Raises DeadlineExceeded if none are."""
        left_s = self.left_s()
        return limit_s if left_s is None else min(left_s, limit_s)
