"""Quick training runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.train.drafter_run import train_drafter
from paceline.train.metrics import TrainProgress
from paceline.train.settings import TrainSettings
from paceline.train.target_folder import TargetFolder
from train.corpora import Taught

CHECKPOINT = Path("training") / "checkpoint.pt"
QUICK = {"batch_tokens": 256, "learning_rate": 3e-3, "validation": 0.2, "checkpoint_minutes": 1000.0, "vocab": 128}


def train(
    given: Taught,
    out: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    start: Path | None = None,
    more: Sequence[Path] = (),
    resume: bool = False,
    weights: str = "float32",
    clock: Callable[[], float] = time.monotonic,
    **changes: Any,
) -> dict[str, Any] | None:
    """A run of four epochs into `out`, unless `changes` say otherwise; `more` corpora beside that which is given."""
    settings = TrainSettings(**{**QUICK, **({} if "minutes" in changes else {"epochs": 4.0}), **changes})
    target = TargetFolder.open(str(given.target), given.target)
    progress = TrainProgress(out, Console(quiet=True))
    corpora = [given.corpus, *more]
    return train_drafter(
        corpora, target, out, settings, weights, progress, stop, start=start, resume=resume, clock=clock
    )
