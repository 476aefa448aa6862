"""What coarser number formats cost a model: perplexity of a text, and greedy agreement, beside float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import TextTokenizer, load_tokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.study.intervals import jackknife
from paceline.study.report import Report

REFERENCE = "float32"


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """What to compare, and on how much text."""

    model: str
    prompts: Sequence[Prompt]  # their texts, one after the other, are the text
    dtypes: Sequence[str]  # beside float32
    tokens: int = 4096  # at most
    window: int = 256  # tokens of a pass; the first of a window has nothing before it


@dataclass(frozen=True, slots=True)
class Reading:
    """A text as a model in one format reads it. W windows of L tokens."""

    losses: NDArray[np.float64]  # [W, L - 1] negative log-likelihood of each token but the first
    best: NDArray[np.int64]  # [W, L] most probable next token


def study_quality(settings: QualitySettings, progress: Callable[[str], None]) -> Report:
    """Reads the text in every format.

    Raises InvalidField for a text of less than two windows, and for a format that this machine cannot run.
    """
    folder = default_store().resolve(settings.model)
    tokenizer = load_tokenizer(folder)
    windows = text_windows(tokenizer, settings)
    readings = {}
    for dtype in (REFERENCE, *(each for each in settings.dtypes if each != REFERENCE)):
        progress(f"{dtype}: loading")
        spec = ModelSpec(str(folder), name=settings.model, dtype=dtype)
        runner = load_runner(spec, settings.window + 64, vocab_size=tokenizer.vocab_size, measure_s=0)
        readings[dtype] = read(runner, windows, lambda done, dtype=dtype: progress(f"{dtype}: window {done + 1}"))  # type: ignore[misc]
    rows = [_row(dtype, reading, readings[REFERENCE]) for dtype, reading in readings.items()]
    return Report(
        "dtypes",
        {"model": settings.model, "tokens": windows.size, "window": settings.window},
        rows,
        notes=[
            "perplexity over every token of a window but its first; ratio: to float32, 95 % interval over windows",
            "agreement: share of positions whose most probable next token is that of float32",
        ],
    )


def text_windows(tokenizer: TextTokenizer, settings: QualitySettings) -> NDArray[np.int32]:
    """[W, L] tokens of the text. Raises InvalidField for less than two windows."""
    ids = tokenizer.encode("\n\n".join(prompt.text for prompt in settings.prompts))[: settings.tokens]
    count = len(ids) // settings.window
    if count < 2:
        remedy = "Give more text."
        raise InvalidField("--prompts", f"{len(ids)} tokens", f"at least {2 * settings.window} tokens", remedy)
    return np.asarray(ids[: count * settings.window], dtype=np.int32).reshape(count, settings.window)


def read(runner: ModelRunner, windows: NDArray[np.int32], progress: Callable[[int], None]) -> Reading:
    """Runs each window as one pass."""
    losses, best = [], []
    for number, window in enumerate(windows):
        progress(number)
        sequence = runner.kv.open()
        chain = np.arange(-1, len(window) - 1, dtype=np.int32)
        try:
            rows = runner.execute(PassPlan((Segment(sequence, window, chain, tuple(range(len(window)))),))).rows
        finally:
            runner.kv.release(sequence)
        rows = rows[:, : runner.info.columns(runner.info.vocab_size)].cpu()
        own = torch.log_softmax(rows[:-1].double(), -1).gather(1, torch.from_numpy(window[1:, None]).long())
        losses.append(-own[:, 0].numpy())
        best.append(rows.argmax(-1).numpy())
    return Reading(np.stack(losses), np.stack(best))


def _row(dtype: str, reading: Reading, reference: Reading) -> dict[str, Any]:
    beside = (reading.losses - reference.losses).sum(1), np.full(len(reading.losses), reading.losses.shape[1])
    ratio = jackknife(np.asarray(beside, dtype=np.float64), lambda sums: math.exp(sums[0] / sums[1]))
    return {
        "dtype": dtype,
        "perplexity": math.exp(reading.losses.mean()),
        "ratio": ratio.mean,
        "low": ratio.low,
        "high": ratio.high,
        "agreement": float((reading.best == reference.best).mean()),
    }
