"""The limit on requests in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import Overloaded


class Admission:
    """Counts requests; beyond the limit they are refused before any work. Event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_flight = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Holds a place. Raises Overloaded, naming the limit, if there is none."""
        if self.in_flight >= self._limit:
            raise Overloaded(
                f"max_requests: all {self._limit} places for requests at this gateway are taken; try again later"
            )
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
