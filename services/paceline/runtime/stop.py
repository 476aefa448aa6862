"""Stop strings over streamed text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidField


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What a piece of text led to."""

    text: str  # text that may be shown
    matched: str | None  # the stop string that was found; nothing comes after it


class StopMatcher:
    """Finds the first stop string to be complete, holding back text that might be the beginning of one.

    A reply ends with the first piece of text (a token's) in which some stop string becomes complete. If several do in
    that piece, the match that starts first wins, and of those that start together the longest. Time is linear in the
    text, whatever the stop strings: each is followed by its own automaton (Knuth, Morris, Pratt 1977).
    """

    __slots__ = ("_held", "_matched", "_patterns", "_progress")

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises InvalidField for an empty string, which every text contains."""
        if "" in stops:
            raise InvalidField("stop", "", "strings of at least one character")
        self._patterns = [_Pattern(stop) for stop in dict.fromkeys(stops)]
        self._progress = [0] * len(self._patterns)  # characters of each stop string that the text so far ends with
        self._held = ""  # the end of the text that begins a stop string
        self._matched: str | None = None

    @property
    def active(self) -> bool:
        """True if there is anything to look for."""
        return bool(self._patterns)

    def push(self, text: str, tentative: str = "") -> StopOutcome:
        """Adds text and returns what may be shown. After a match nothing is shown any more.

        `tentative` is text that would follow if the reply ended here. It counts for a match; without one it is
        forgotten, and comes again with a later push.
        """
        if self._matched is not None:
            return StopOutcome("", self._matched)
        whole = self._held + text
        matches: list[tuple[int, int, str]] = []  # start in `whole`, minus length, the stop string
        for index, pattern in enumerate(self._patterns):
            progress, end = pattern.advance(self._progress[index], text)
            self._progress[index] = progress
            if end is None and tentative:
                _, end = pattern.advance(progress, tentative)
                end = None if end is None else len(text) + end
            if end is not None:
                length = len(pattern.text)
                matches.append((len(self._held) + end - length, -length, pattern.text))
        if matches:
            start, _, self._matched = min(matches)
            self._held = ""
            return StopOutcome((whole + tentative)[:start], self._matched)
        shown = len(whole) - max(self._progress, default=0)
        self._held = whole[shown:]
        return StopOutcome(whole[:shown], None)

    def flush(self) -> str:
        """The text still held back; call once, at the end."""
        shown, self._held = self._held, ""
        return shown


class _Pattern:
    """A stop string as an automaton over characters."""

    __slots__ = ("_fallback", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # [n]: of the first n characters, how many at the end are also a (shorter) beginning
        self._fallback = [0, 0]
        known = 0
        for character in text[1:]:
            while known and character != text[known]:
                known = self._fallback[known]
            known += character == text[known]
            self._fallback.append(known)

    def advance(self, progress: int, text: str) -> tuple[int, int | None]:
        """Reads `text` after `progress` characters of the pattern: (progress, None), or where in `text` it ends."""
        pattern, fallback, length = self.text, self._fallback, len(self.text)
        for index, character in enumerate(text):
            while progress and character != pattern[progress]:
                progress = fallback[progress]
            progress += character == pattern[progress]
            if progress == length:
                return 0, index + 1
        return progress, None
