"""Whether the compute thread moves."""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """Time since the compute thread last moved while work was pending. Reads and writes are single attributes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None  # None: nothing is pending

    def moved(self) -> None:
        """Something was done and there may be more."""
        self._since = self._clock()

    def pending(self) -> None:
        """Work has come."""
        if self._since is None:
            self._since = self._clock()

    def idle(self) -> None:
        """Nothing can be done until something comes."""
        self._since = None

    @property
    def stalled_s(self) -> float:
        """Seconds without a move while work is pending; 0 if none is."""
        since = self._since
        return 0.0 if since is None else max(self._clock() - since, 0.0)
