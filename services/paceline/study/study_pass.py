"""`paceline study pass`: what a pass costs by its size, its number of sessions and the format of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.errors import InvalidField
from paceline.figures import Curve, Panel, draw
from paceline.runtime.models import ModelSpec, context_limit
from paceline.runtime.transformers_runner import load_runner
from paceline.runtime.weights import load_config
from paceline.speculation.sampling import SamplingParams
from paceline.study.bare import BareModel
from paceline.study.formats import LOW_BIT, bare_format, with_formats
from paceline.study.intervals import median_interval
from paceline.study.pass_memory import pass_memory
from paceline.study.pass_shares import pass_shares
from paceline.study.passes import Cell, PackedSessions, PassSettings, measure_passes
from paceline.study.ratios import Ratio, ratio_of
from paceline.study.report import Report

SHARES_MOST = 128  # tokens of a pass whose shares are looked at
BARS = {
    "bare": 1.10,  # of a bare forward, one session, at 1, 8 and 16 tokens
    "float32": 0.25,  # of our own float32 pass, low-bit weights, at 1 token
    "one": 1.5,  # of itself at 1 token, low-bit weights, at 8
    "overhead": 0.2,  # share of a pass outside linears and attention, one session
}
Times = Mapping[str, Mapping[Cell, Sequence[float]]]


def study_pass(settings: PassSettings, out: Path | None, progress: Callable[[str], None]) -> Report:
    """Everything is loaded first, and then runs in turns.

    The bound that counts is the upper end of an interval. Raises InvalidField for more tokens than the model's context.
    """
    _check_context(settings)
    torch.set_num_threads(settings.threads)

    def load(dtype: str) -> PackedSessions:
        progress(f"loading {dtype}")
        spec = ModelSpec(str(settings.model), dtype=dtype, device=settings.device)
        return PackedSessions(load_runner(spec, settings.kv_tokens, measure_s=settings.measure_s), settings)

    packed, skipped = with_formats(settings.dtypes, load)
    settings = replace(settings, dtypes=tuple(packed))
    device = next(iter(packed.values())).runner.info.device
    beside = dict.fromkeys(bare_format(dtype) for dtype in packed)
    bare = {name: BareModel(settings.model, name, device) for name in beside}
    times = measure_passes(settings, packed, bare, progress)
    del bare
    shares = _shares(settings, packed, progress)
    padded = {
        (dtype, size): each.runner.costs.padded(size) for dtype, each in packed.items() for size in _sizes(settings)
    }
    packed = {}
    memory = []
    for dtype in settings.dtypes:
        progress(f"memory of {dtype}")
        memory.append({"dtype": dtype, **pass_memory(settings, dtype).as_dict()})
    rows = [_row(settings, times, padded, dtype, cell) for dtype in settings.dtypes for cell in settings.cells]
    bars = judged(settings.dtypes, times, shares)
    if out is not None:
        draw([_panel(rows, sessions) for sessions in settings.sessions], min(3, len(settings.sessions)), out, "pass")
    return Report(
        "pass",
        {
            "model": settings.model.name,
            "dtypes": list(settings.dtypes),
            "context": settings.context,
            "rounds": settings.rounds,
            "threads": settings.threads,
            "device": device,
        },
        rows,
        notes=[
            "ms and bare_ms: medians over rounds, with intervals that hold them with 95 %; a pass computes every row",
            "bare: a transformers forward over a cache, all sessions in one batch; float32 beside int8 and int4",
            "over_bare, over_float32 and over_one_token: ratios of times round by round; below 1 the pass is faster",
            *(_shares_note(each) for each in shares if each["sessions"] == 1 and each["tokens"] in (1, 8)),
            *(_memory_note(each) for each in memory),
            *skipped,
            *(note for note, _ in bars),
        ],
        passed=all(met for _, met in bars),
        extra={"shares": shares, "memory": memory, "skipped": skipped},
    )


def _check_context(settings: PassSettings) -> None:
    name = settings.model.name
    limit = context_limit(load_config(settings.model, name).get_text_config(decoder=True), name)
    most = limit.tokens - max(settings.tokens)
    if settings.context > most:
        allowed = f"at most {most}, for {limit.tokens} tokens with --tokens"
        raise InvalidField("--context", settings.context, allowed, f"{limit.reason}.")


def _sizes(settings: PassSettings) -> set[int]:
    return {sessions * tokens for sessions, tokens in settings.cells}


def _shares(
    settings: PassSettings, packed: Mapping[str, PackedSessions], progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    found = []
    for dtype, each in packed.items():
        for cell in settings.cells:
            if cell[0] * cell[1] <= SHARES_MOST:
                progress(f"shares of {dtype}, {cell[0]} sessions of {cell[1]} tokens")
                shares = pass_shares(each.runner, each.plan(cell), SamplingParams())
                found.append({"dtype": dtype, "tokens": cell[1], "sessions": cell[0], **shares.as_dict()})
    return found


def _row(
    settings: PassSettings, times: Times, padded: Mapping[tuple[str, int], int], dtype: str, cell: Cell
) -> dict[str, Any]:
    ours, base = times[dtype][cell], times[f"bare {bare_format(dtype)}"][cell]
    one = (cell[0], 1)
    taken, bare = median_interval(ours), median_interval(base)
    return {
        "dtype": dtype,
        "tokens": cell[1],
        "sessions": cell[0],
        "ms": taken.mean * 1e3,
        "low_ms": taken.low * 1e3,
        "high_ms": taken.high * 1e3,
        "bare_ms": bare.mean * 1e3,
        "over_bare": over(ours, base),
        "over_float32": over(ours, times["float32"][cell]) if "float32" in times else None,
        "over_one_token": over(ours, times[dtype][one]) if one in times[dtype] else None,
        "padded_to": padded[dtype, cell[0] * cell[1]],
        "rounds": settings.rounds,
    }


def over(ours: Sequence[float], base: Sequence[float]) -> float:
    """Time of ours over that of the base: the geometric mean over rounds."""
    return 1 / ratio_of(ours, base).mean


def judged(dtypes: Sequence[str], times: Times, shares: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Every bar that was measured, in words, and whether it is met."""
    found: list[tuple[str, bool]] = []

    def bar(words: str, ours: Sequence[float], base: Sequence[float], most: float) -> None:
        ratio = ratio_of(ours, base)
        mean, low, high = _inverse(ratio)
        met = high <= most
        text = f"bar: {words} {mean:.3f} ({low:.3f} to {high:.3f}), at most {most:g}: {'met' if met else 'missed'}"
        found.append((text, met))

    for dtype in dtypes:
        own = times[dtype]
        for tokens in (1, 8, 16):
            if (1, tokens) in own:
                base = times[f"bare {bare_format(dtype)}"][1, tokens]
                bar(f"{dtype}, {_tokens(tokens)}, over a bare forward", own[1, tokens], base, BARS["bare"])
        if dtype in LOW_BIT and "float32" in times and (1, 1) in own:
            bar(f"{dtype}, 1 token, over our float32 pass", own[1, 1], times["float32"][1, 1], BARS["float32"])
        if dtype in LOW_BIT and {(1, 1), (1, 8)} <= own.keys():
            bar(f"{dtype}, 8 tokens over 1", own[1, 8], own[1, 1], BARS["one"])
        for each in shares:
            if each["dtype"] == dtype and each["sessions"] == 1 and each["tokens"] in (1, 8):
                met = each["overhead"] <= BARS["overhead"]
                measured = (
                    f"outside linears and attention {each['overhead']:.2f} of a pass, at most {BARS['overhead']:g}"
                )
                found.append(
                    (f"bar: {dtype}, {_tokens(each['tokens'])}, {measured}: {'met' if met else 'missed'}", met)
                )
    return found


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count > 1)}"


def _inverse(ratio: Ratio) -> tuple[float, float, float]:
    return 1 / ratio.mean, 1 / ratio.high, 1 / ratio.low


def _shares_note(each: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{part} {each[part]:.0%}" for part in ("linears", "attention", "operators", "sampling", "rest"))
    return (
        f"{each['dtype']}, {_tokens(each['tokens'])}: {parts} (operators: all others; rest: no operator runs, Python)"
    )


def _memory_note(each: Mapping[str, Any]) -> str:
    return (
        f"{each['dtype']}: weights {each['weights_mib']:.0f} MiB, KV {each['kv_mib']:.0f} MiB,"
        f" peak {each['peak_mib']:.0f} MiB"
    )


def _panel(rows: Sequence[Mapping[str, Any]], sessions: int) -> Panel:
    curves = {}
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        chosen = [row for row in rows if row["dtype"] == dtype and row["sessions"] == sessions]
        columns = {key: [row[key] for row in chosen] for key in ("tokens", "ms", "low_ms", "high_ms", "bare_ms")}
        curves[dtype] = Curve(columns["tokens"], columns["ms"], columns["low_ms"], columns["high_ms"])
        if dtype not in LOW_BIT:
            curves[f"transformers, {dtype}"] = Curve(columns["tokens"], columns["bare_ms"])
    return Panel(f"{sessions} session{'s' * (sessions > 1)}", "tokens of each session", "ms", curves, log_x=True)
