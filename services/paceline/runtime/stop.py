"""Stop strings over streamed text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What a piece of text led to."""

    text: str  # text that may be shown
    matched: str | None  # the stop string that was found; nothing comes after it


class StopMatcher:
    """Finds the earliest stop string, holding back text that might be the beginning of one.

    The match that starts first wins; of several that start there, the longest one that is complete.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""

    def push(self, text: str) -> StopOutcome:
        """Adds text and returns what may be shown."""
        self._held += text
        found = [(start, -len(stop), stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if found:
            start, _, stop = min(found)
            shown, self._held = self._held[:start], ""
            return StopOutcome(shown, stop)
        keep = self._possible_beginning()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return StopOutcome(shown, None)

    def flush(self) -> str:
        """The text still held back; call once, at the end."""
        shown, self._held = self._held, ""
        return shown

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max((len(stop) for stop in self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
