"""Cost of our packed pass beside a bare cached transformers forward of the same tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.runtime.transformers_runner import load_runner
from paceline.study.bare import BareModel
from paceline.study.ratios import interleaved, ratio_of
from paceline.study.report import Report


@dataclass(frozen=True, slots=True)
class PassSettings:
    """What to measure."""

    model: Path
    dtype: str
    sizes: Sequence[int] = (1, 8, 16)  # tokens a pass
    prefix: int = 256  # committed tokens before them
    pairs: int = 40
    threads: int = 2


def study_passes(settings: PassSettings, progress: Callable[[str], None]) -> Report:
    """Interleaved pairs of one packed pass (a chain, every row wanted) and one bare forward (every row computed).

    The bound that counts is the upper end of the interval of ours / bare.
    """
    torch.set_num_threads(settings.threads)
    runner = load_runner(ModelSpec(str(settings.model), dtype=settings.dtype), kv_tokens=settings.prefix + 512)
    bare = BareModel(settings.model, settings.dtype)
    tokens = np.random.default_rng(0).integers(100, 4000, size=settings.prefix + max(settings.sizes)).astype(np.int32)
    prefix = tokens[: settings.prefix]
    sequence = runner.kv.open(reserve_tokens=settings.prefix + max(settings.sizes))
    runner.execute(PassPlan((Segment.chain(sequence, prefix, last_row=False),)))
    runner.kv.keep(sequence, range(settings.prefix))
    rows: list[dict[str, Any]] = []
    with bare.prefilled(prefix.tolist()) as cached:
        for size in settings.sizes:
            progress(f"{size} tokens a pass")
            block = tokens[settings.prefix : settings.prefix + size]
            ours = _packed(runner, sequence, block)
            for _ in range(3):
                ours(0), cached.forward(block.tolist())
            ours_s, base_s = interleaved(ours, lambda _, block=block: cached.timed(block.tolist()), settings.pairs)  # type: ignore[misc]
            ratio = ratio_of(ours_s, base_s)
            rows.append(
                {
                    "tokens": size,
                    "packed_ms": ratio.ours_s * 1e3,
                    "bare_ms": ratio.base_s * 1e3,
                    "packed_over_bare": 1 / ratio.mean,
                    "low": 1 / ratio.high,
                    "high": 1 / ratio.low,
                    "padded_to": runner.costs.padded(size),
                    "pairs": ratio.pairs,
                }
            )
    return Report(
        "passes",
        {"model": settings.model.name, "dtype": settings.dtype, "prefix": settings.prefix, "threads": settings.threads},
        rows,
        notes=["bar: upper end of packed / bare at most 1.10 at 1, 8 and 16 tokens"],
        passed=all(row["high"] <= 1.10 for row in rows),
    )


def _packed(runner: ModelRunner, sequence: int, block: np.ndarray) -> Callable[[int], float]:
    parents = np.arange(-1, len(block) - 1, dtype=np.int32)
    plan = PassPlan((Segment(sequence, block, parents, tuple(range(len(block)))),))

    def run(_: int) -> float:
        start = time.perf_counter()
        runner.execute(plan)
        return time.perf_counter() - start

    return run
