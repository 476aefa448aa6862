"""What the time of a pass goes into, by torch's profiler, in runs of their own: profiling slows what it looks at."""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelRunner, PassRows
from paceline.speculation.choices import SeededChoices
from paceline.speculation.rows import process
from paceline.speculation.sampling import SamplingParams

# Operators of the CPU and kernels of the GPU by what they are for. The whole of an operator counts, with all that it
# calls. Compiled code keeps matrix products and attention as calls of these.
_LINEAR = re.compile(r"linear|::addmm$|::mm$|gemm|gemv|cutlass|cublas|splitk|_int[48]pack_mm|_int_mm", re.IGNORECASE)
_ATTENTION = re.compile(
    r"attention|::index_copy_?$|::index_put_?$|::bmm$|::baddbmm|::_?softmax$|flash|fmha|sdpa", re.IGNORECASE
)
_WHOLE = re.compile(r"::embedding$")  # calls what elsewhere is attention's


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a pass and of drawing from all its rows; they sum to 1."""

    linears: float
    attention: float  # reading and writing KV included
    operators: float  # all others: norms, positions, activations, copies
    sampling: float  # rows and draws
    rest: float  # Python, laying out, waiting: no operator runs

    @property
    def overhead(self) -> float:
        """All but linears and attention."""
        return 1 - self.linears - self.attention

    def as_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return {**asdict(self), "overhead": self.overhead}


@dataclass(frozen=True, slots=True)
class _Seconds:
    linears: float
    attention: float
    operators: float


def pass_shares(runner: ModelRunner, plan: PassPlan, params: SamplingParams, repeats: int = 5) -> Shares:
    """Medians over `repeats` runs, each profiled once and once not: shares are of the time without the profiler."""
    plain_s, sampling_s, profiled = [], [], []
    _run(runner, plan, params)
    for _ in range(repeats):
        taken_s, drawn_s = _run(runner, plan, params)
        plain_s.append(taken_s)
        sampling_s.append(drawn_s)
        profiled.append(_profiled(runner, plan))
    linears, attention, operators = (
        statistics.median(getattr(each, part) for each in profiled) for part in ("linears", "attention", "operators")
    )
    passed, sampling = statistics.median(plain_s), statistics.median(sampling_s)
    known = linears + attention + operators
    if known > passed:  # the profiler's own time; it sits in the small operators
        operators = max(0.0, passed - linears - attention)
        known = linears + attention + operators
    total = max(passed, known) + sampling
    return Shares(
        linears / total, attention / total, operators / total, sampling / total, (total - sampling - known) / total
    )


def _run(runner: ModelRunner, plan: PassPlan, params: SamplingParams) -> tuple[float, float]:
    """Seconds of a pass, and of drawing from each of its rows."""
    start = time.perf_counter()
    rows = runner.execute(plan)
    ran = time.perf_counter()
    _draw(runner, plan, rows, params)
    return ran - start, time.perf_counter() - ran


def _draw(runner: ModelRunner, plan: PassPlan, rows: PassRows, params: SamplingParams) -> None:
    choices = SeededChoices(params)
    for number, segment in enumerate(plan.segments):
        for node in segment.rows:
            row = process(rows.logits(number, node), params, runner.info.vocab_size)
            choices.draw(row, position=node)


def _profiled(runner: ModelRunner, plan: PassPlan) -> _Seconds:
    on_gpu = runner.info.device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with _silent(), profile(activities=activities) as found:
        runner.execute(plan)
    events: list[Any] = list(found.events())
    return _of_kernels(events) if on_gpu else _of_operators(events)


@contextmanager
def _silent() -> Iterator[None]:
    """Drops what is written to standard error: the profiler's library writes lines of its own there, past Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _of_operators(events: Iterable[Any]) -> _Seconds:
    """From the outermost operator of a kind; times of the profiler are microseconds."""
    sums = {"linears": 0.0, "attention": 0.0, "operators": 0.0}

    def add(event: Any) -> None:
        kind = _kind(event.name)
        if kind != "operators" or not event.cpu_children or _WHOLE.search(event.name):
            sums[kind] += event.cpu_time_total / 1e6
            return
        sums["operators"] += event.self_cpu_time_total / 1e6
        for child in event.cpu_children:
            add(child)

    for event in events:
        if event.cpu_parent is None and "::" in event.name:
            add(event)
    return _Seconds(**sums)


def _of_kernels(events: Iterable[Any]) -> _Seconds:
    """From the GPU's kernels, which also a captured graph shows."""
    sums = {"linears": 0.0, "attention": 0.0, "operators": 0.0}
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            sums[_kind(event.name)] += event.device_time_total / 1e6
    return _Seconds(**sums)


def _kind(name: str) -> str:
    if _WHOLE.search(name):
        return "operators"
    if _ATTENTION.search(name):
        return "attention"
    return "linears" if _LINEAR.search(name) else "operators"
