"""Plots, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH_IN, HEIGHT_IN = 3.6, 3.0  # of one panel


@dataclass(frozen=True, slots=True)
class Curve:
    """Points with their intervals; `low` and `high` may be left out together."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its interval."""

    name: str
    value: float
    low: float
    high: float


def draw_bars(bars: Sequence[Bar], x_label: str, out: Path, name: str) -> None:
    """Writes NAME.png and NAME.svg into `out`: one bar below the other, the first on top. NaN draws no interval."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(2 * WIDTH_IN, 0.3 * len(bars) + 0.9))
    errors = [[max(0.0, each.value - each.low) for each in bars], [max(0.0, each.high - each.value) for each in bars]]
    axis.barh([each.name for each in bars], [each.value for each in bars], xerr=errors, capsize=2, height=0.7)
    axis.invert_yaxis()
    axis.set_xlabel(x_label, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3, axis="x")
    figure.tight_layout()
    _save(figure, out, name)


def draw(panels: Sequence[Panel], columns: int, out: Path, name: str) -> None:
    """Writes NAME.png and NAME.svg into `out`: the panels in rows of `columns`, one legend for all."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(WIDTH_IN * columns, HEIGHT_IN * rows + 0.4), squeeze=False)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    shown = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        for curve_name, curve in panel.curves.items():
            colour = colours[curve_name]
            (line,) = axis.plot(curve.x, curve.y, marker="o", markersize=3, linewidth=1.2, color=colour)
            if len(curve.low):
                axis.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
            shown[curve_name] = line
        if panel.log_x:
            axis.set_xscale("log", base=2)
        axis.set_title(panel.title, fontsize=9)
        axis.set_xlabel(panel.x_label, fontsize=8)
        axis.set_ylabel(panel.y_label, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=min(len(shown), 6), fontsize=8)
    figure.tight_layout(rect=(0, 0.4 / (HEIGHT_IN * rows + 0.4), 1, 1))
    _save(figure, out, name)


def _save(figure: Any, out: Path, name: str) -> None:
    from matplotlib import pyplot

    out.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(out / f"{name}.{kind}", dpi=140)
    pyplot.close(figure)
