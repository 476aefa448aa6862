"""The limit on replies in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import Overloaded


class Admission:
    """Counts replies; requests beyond the limit are refused before any work. Event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_flight = 0

    @contextmanager
    def enter(self, replies: int = 1) -> Iterator[None]:
        """Holds a place for each reply of a request. Raises Overloaded, naming the limit, if there are too few."""
        free = self._limit - self.in_flight
        if replies > free:
            taken = f"all {self._limit} places for replies at this gateway are taken"
            short = f"the request wants {replies} places for replies, {free} of {self._limit} at this gateway are free"
            raise Overloaded(f"max_requests: {short if free else taken}; try again later")
        self.in_flight += replies
        try:
            yield
        finally:
            self.in_flight -= replies
