"""Rounds shown in the terminal as they come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from paceline_client.commands.tree import ASCII, BOX, LEGEND, Mark, Paint, Strokes, label, tree_lines, unpainted
from paceline_client.rounds import RoundTrace

_COLOURS = {Mark.ACCEPTED: "32", Mark.RELAXED: "33", Mark.DRAWN: "36", Mark.HELD_BACK: "35", Mark.FOCUS: "1;34"}


class TreeView:
    """Prints a header and a tree for each round, and once what the marks mean."""

    def __init__(self, stream: TextIO, *, strokes: Strokes = BOX, paint: Paint = unpainted) -> None:
        self._stream, self._strokes, self._paint = stream, strokes, paint
        self._explained = False
        self.begin()

    def begin(self) -> None:
        """Starts with a new reply."""
        self._rounds = 0
        self._before = "(prompt)"
        self._waiting: RoundTrace | None = None

    def show(self, rounds: Sequence[RoundTrace]) -> None:
        """Prints rounds; one that may have held a token back when the next shows that the reply did not end there."""
        for trace in rounds:
            self._flush(ended=False)
            self._waiting = trace
        if self._waiting is not None and not (self._waiting.rule == "retain" and self._waiting.drawn is None):
            self._flush(ended=False)

    def end(self) -> None:
        """Prints what is left of the reply."""
        self._flush(ended=True)
        if not self._rounds:
            self._print("no rounds: the server traced none")

    def _flush(self, *, ended: bool) -> None:
        trace, self._waiting = self._waiting, None
        if trace is None:
            return
        if not self._explained:
            self._explained = True
            self._print(LEGEND)
        self._rounds += 1
        self._print("", header(self._rounds, trace))
        self._print(*tree_lines(trace, self._before, ended=ended, strokes=self._strokes, paint=self._paint))
        if trace.emitted:
            text = trace.emitted_texts[-1] if len(trace.emitted_texts) == len(trace.emitted) else ""
            self._before = label(trace.emitted[-1], text)

    def _print(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._stream, flush=True)


def header(number: int, trace: RoundTrace) -> str:
    """One line on a round: rule, reason, drafts, durations, budget, fallback."""
    reason = f" ({' '.join(trace.reason.split())})" if trace.reason else ""
    relaxed = f" ({len(trace.relaxed)} relaxed)" if trace.relaxed else ""
    drafts = f"{len(trace.accepted)} of {len(trace.tree_tokens)} drafted accepted{relaxed}"
    parts = [f"{trace.rule or 'plain'}{reason}", drafts if trace.tree_tokens else "no tree"]
    if trace.draft_ms is not None:
        parts.append(f"draft {trace.draft_ms:.1f} ms")
    parts.append(f"pass {trace.pass_ms:.1f} ms, {trace.pass_tokens} tokens in it")
    if trace.budget_reason:
        parts.append(f"budget {trace.budget} ({' '.join(trace.budget_reason.split())})")
    if trace.deviation_spent:
        parts.append(f"deviation {trace.deviation_spent:.4g}")
    if trace.fallback:
        parts.append(f"fallback {trace.fallback}")
    return f"round {number} at {trace.position}: {', '.join(parts)}"


def tree_view(stream: TextIO) -> TreeView:
    """A view for the stream: in colour on a terminal without NO_COLOR, box characters where it can encode them."""
    colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return TreeView(stream, strokes=_strokes(stream), paint=_painted if colours else unpainted)


def _painted(text: str, mark: Mark | None) -> str:
    return f"\033[{_COLOURS[mark]}m{text}\033[0m" if mark is not None else text


def _strokes(stream: TextIO) -> Strokes:
    try:
        f"{BOX.branch}{BOX.last}{BOX.run}".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOX
