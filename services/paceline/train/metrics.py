"""A run for people: progress on standard error, `metrics.jsonl` and a plot of validations."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from paceline.figures import Curve, Panel, draw
from paceline.train.checkpoint import Place

METRICS, PLOT = "metrics.jsonl", "validation"
_SHOWN = {
    "loss": "KL divergence, nats",
    "top1": "first token is the target's",
    "top4": "target's among the first four",
    "overlap": "share of probability in common",
}


def write_metrics(out: Path, metrics: Sequence[dict[str, Any]]) -> None:
    """Writes a line for each validation, and the curves of all, into `out`."""
    scratch = out / f".{METRICS}.tmp"
    scratch.write_text("".join(json.dumps(each) + "\n" for each in metrics), encoding="utf-8")
    os.replace(scratch, out / METRICS)
    minutes = [each["seconds"] / 60 for each in metrics]
    panels = [
        Panel(name, "minutes", label, {"held out": Curve(minutes, [each[name] for each in metrics])})
        for name, label in _SHOWN.items()
    ]
    draw(panels, 2, out, PLOT)


class TrainProgress:
    """A bar with rate and remaining time on a terminal, and a line for each validation everywhere."""

    def __init__(self, out: Path, console: Console | None = None) -> None:
        """`out`: folder of the metrics; `console`: standard error unless given."""
        self._out = out
        self._bars = Progress(
            TextColumn("train drafter"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %  {task.description}"),
            console=console or Console(stderr=True, highlight=False, markup=False, soft_wrap=True),
            transient=True,
        )
        self._task = self._bars.add_task("", total=1.0)
        self._began = time.monotonic()
        self._first: tuple[float, int] | None = None  # share and tokens at this process's first step

    def say(self, text: str) -> None:
        """A line that stays."""
        self._bars.console.print(f"train drafter: {text}")

    def stepped(self, share: float, place: Place, loss: float) -> None:
        """Moves the bar."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = (share, place.tokens), now
            return
        spent = max(now - self._began, 1e-9)
        speed = (place.tokens - self._first[1]) / spent
        left = (1 - share) * spent / max(share - self._first[0], 1e-9)
        self._bars.update(
            self._task,
            completed=share,
            description=f"step {place.step}, loss {loss:.3f}, {speed:.0f} tokens/s, {_clock(left)} left",
        )

    def validated(self, place: Place) -> None:
        """Writes metrics and plot, and a line."""
        last = place.metrics[-1]
        figures = ", ".join(f"{name} {last[name]:.4f}" for name in _SHOWN)
        rate = last["tokens"] / last["seconds"] if last["seconds"] > 0 else 0.0
        done = f"step {last['step']}, {_clock(last['seconds'])}, {last['tokens']} tokens ({rate:.0f}/s)"
        self.say(f"{done}, held out: {figures}")
        write_metrics(self._out, place.metrics)

    def __enter__(self) -> TrainProgress:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars.console.is_terminal:
            self._bars.stop()


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
