"""Turns of a measurement that runs long: those that an earlier run has left, and those that are measured now."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from paceline.study.parts import Parts


class Turns:
    """Turns of one kind, each a part. What is compared is measured within one, so that no run of it is half old."""

    def __init__(self, parts: Parts, keys: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Reads what an earlier run has left.

        Args:
            parts: where finished turns are.
            keys: of all turns, in order.
            clock: gives seconds.
        """
        self._parts, self._keys, self._clock = parts, list(keys), clock
        self._found = {key: part for key in self._keys if (part := parts.get(key)) is not None}
        self._measured, self._seconds = 0, 0.0

    @property
    def missing(self) -> int:
        """Turns that are yet to be measured."""
        return len(self._keys) - len(self._found)

    async def take(self, key: str, measure: Callable[[], Awaitable[Any]]) -> None:
        """Measures a turn and keeps it, unless it is kept. `measure` gives plain data."""
        if key in self._found:
            return
        began = self._clock()
        self._found[key] = self._parts.put(key, await measure())
        self._measured += 1
        self._seconds += self._clock() - began

    def told(self, stage: str) -> str:
        """The stage with the time that the missing turns will take, once one has been measured."""
        if not self._measured:
            return stage
        left_s = self.missing * self._seconds / self._measured
        return f"{stage}, about {left_s:.0f} s left" if left_s < 100 else f"{stage}, about {left_s / 60:.0f} min left"

    def all(self) -> list[Any]:
        """The parts of all turns, in order, as JSON reads them; none may be missing."""
        return [self._found[key] for key in self._keys]


def tell_kept(study: str, parts: Parts, keys: Sequence[str]) -> None:
    """Says on standard error that a run goes on from parts of an earlier one, if it does."""
    kept = sum(parts.get(key) is not None for key in keys)
    if not kept:
        return
    does = "goes on" if kept < len(keys) else "measures nothing"
    print(
        f"study {study} {does}: {kept} of {len(keys)} turns with these settings are in {parts.folder}."
        " To measure anew, delete that folder.",
        file=sys.stderr,
    )


def runs_note(runs: int) -> list[str]:
    """A note of a report whose turns were measured in that many runs; none for one."""
    if runs == 1:
        return []
    return [f"turns were measured in {runs} runs, each turn with all that it compares in one of them"]
