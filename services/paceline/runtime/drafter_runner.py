"""Loads the model of a drafter: a folder of its own, or a distilled one that takes its target's embedding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.errors import ModelDamaged
from paceline.runtime import attention
from paceline.runtime.drafter_fit import Resolve, Trimmed, fit_drafter
from paceline.runtime.drafter_folder import read_weights
from paceline.runtime.models import ModelSpec
from paceline.runtime.student import fill, new_student
from paceline.runtime.tokenizer import LoadTokenizer, load_tokenizer
from paceline.runtime.transformers_runner import TransformersRunner, load_runner, runner_of
from paceline.runtime.weights import load_config


@dataclass(frozen=True, slots=True)
class DrafterModel:
    """A loaded drafter."""

    runner: TransformersRunner
    tokenizer_fingerprint: str


def load_drafter_model(
    spec: ModelSpec,
    kv_tokens: int,
    target: str | None,
    resolve: Resolve,
    tokenizer_of: LoadTokenizer = load_tokenizer,
    *,
    measure_s: float = 2.0,
) -> DrafterModel:
    """Loads the model of a drafter that fits its target.

    Args:
        spec: its folder and how to hold it.
        kv_tokens: see `load_runner`.
        target: see `fit_drafter`.
        resolve: see `fit_drafter`.
        tokenizer_of: see `fit_drafter`.
        measure_s: see `load_runner`.

    Raises what `fit_drafter` and `load_runner` do.
    """
    fit = fit_drafter(Path(spec.path), spec.name or Path(spec.path).name, target, resolve, tokenizer_of)
    if fit.trimmed is None:
        runner = load_runner(spec, kv_tokens, vocab_size=fit.tokenizer.vocab_size, measure_s=measure_s)
    else:
        runner = _load_trimmed(spec, kv_tokens, fit.trimmed, fit.tokenizer.vocab_size, measure_s)
    return DrafterModel(runner, fit.tokenizer.fingerprint)


def _load_trimmed(
    spec: ModelSpec, kv_tokens: int, trimmed: Trimmed, vocab_size: int, measure_s: float
) -> TransformersRunner:
    folder = Path(spec.path)
    name = spec.name or folder.name
    config = load_config(folder, name)
    if tuple(trimmed.embedding.shape) != (config.vocab_size, config.hidden_size):
        raise ModelDamaged(f"{name}: config.json does not fit drafter.json; export the drafter again")

    def load(dtype: torch.dtype) -> Any:
        model = new_student(config, trimmed.embedding.to(dtype), len(trimmed.token_ids), attention.NAME, name)
        fill(model, read_weights(folder, name), name)
        return model

    return runner_of(
        config,
        load,
        spec,
        kv_tokens,
        vocab_size=vocab_size,
        measure_s=measure_s,
        token_ids=trimmed.token_ids,
    )
