"""Ctrl-C and SIGTERM as an event that the main thread waits for, whatever it waits for besides."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
NUMBERS = (signal.SIGINT, signal.SIGTERM)
POLL_S = 0.2  # how often a wait looks up, so that Python gets to run signal handlers


class Stopped(Exception):
    """The user asked for the end."""


class StopSignal:
    """Within the `with` block SIGINT and SIGTERM set `asked`. Main thread only."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.left: threading.Thread | None = None  # of the call that Stopped ended, while it may still run
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        for number in NUMBERS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` in a thread and returns its result. Raises Stopped at once if the end is asked for.

        The thread is then left behind, as `left`: what it waits for must be ended by the caller.
        """
        if self.asked.is_set():
            raise Stopped
        outcome: list[T] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(function())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, daemon=True, name=getattr(function, "__name__", "step"))
        thread.start()
        while thread.is_alive():
            if self.asked.is_set():
                self.left = thread
                raise Stopped
            thread.join(POLL_S)
        for number in NUMBERS:
            signal.signal(number, self._note)  # Ray's C++ side puts a handler of its own in place of ours
        if failure:
            raise failure[0]
        return outcome[0]

    def wait(self, seconds: float) -> bool:
        """Waits; returns True as soon as the end is asked for."""
        return self.asked.wait(seconds)

    def _note(self, number: int, frame: FrameType | None) -> None:
        signal.alarm(0)  # that handler, if it ran first, has ordered an abort in three seconds
        self.asked.set()
