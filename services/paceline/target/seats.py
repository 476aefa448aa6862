"""How many sessions a replica takes in, decoding and waiting together."""

from __future__ import annotations

import threading


class Seats:
    """A bounded count, taken on the event loop and given back by the compute thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> bool:
        """Takes a seat; False if all are taken."""
        with self._lock:
            if self._taken >= self.limit:
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        """Frees a seat."""
        with self._lock:
            self._taken -= 1

    @property
    def taken(self) -> int:
        """Seats in use."""
        with self._lock:
            return self._taken
