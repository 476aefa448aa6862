"""The one way into the compute thread: a queue that a sleeping thread wakes from."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Inbox(Generic[Event]):
    """Events from any thread, in order. The compute thread sleeps here whenever nothing can be computed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def post(self, events: Iterable[Event]) -> bool:
        """Appends and wakes the reader; False, with nothing appended, once closed."""
        with self._changed:
            if self._closed:
                return False
            self._events.extend(events)
            self._changed.notify()
        return True

    def take(self) -> list[Event]:
        """Everything that has come, without waiting."""
        if not self._events:  # reading a deque's length needs no lock; an event that comes now is taken next time
            return []
        with self._changed:
            taken = list(self._events)
            self._events.clear()
        return taken

    def wait(self, until: float | None) -> None:
        """Sleeps until an event is here or the clock reads `until` (None: no limit)."""
        with self._changed:
            while not self._events and not self._closed:
                left_s = None if until is None else until - self._clock()
                if left_s is not None and left_s <= 0:
                    return
                self._changed.wait(left_s)

    def close(self) -> list[Event]:
        """Takes what is left and refuses everything that comes later."""
        with self._changed:
            self._closed = True
            left = list(self._events)
            self._events.clear()
            self._changed.notify_all()
        return left
