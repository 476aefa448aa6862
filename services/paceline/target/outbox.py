"""The one way out of the compute thread: calls that run on the event loop, one wake-up per step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Outbox(Protocol):
    """Collects calls in the compute thread and hands them over together."""

    def post(self, call: Callable[[], None]) -> None:
        """Adds a call to the next batch. Compute thread only."""

    def flush(self) -> None:
        """Hands the batch over. Compute thread only."""


class LoopOutbox:
    """Runs the calls on an event loop, in order, in one callback per flush."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: list[Callable[[], None]] = []

    def post(self, call: Callable[[], None]) -> None:
        """Adds a call to the next batch."""
        self._calls.append(call)

    def flush(self) -> None:
        """Wakes the loop once, if there is anything to run. A loop that has ended takes nothing."""
        if not self._calls:
            return
        calls, self._calls = self._calls, []
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_run, calls)


def _run(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
