"""A drafter folder from a run's folder.

A run's folder holds `checkpoint.pt` (see `paceline.train.checkpoint`) and what the checkpoint's tensors need to be a
drafter: `config.json`, `drafter.json` and, unless its head is whole, `token_ids.npy`, as a drafter folder has them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.runtime.drafter_folder import (
    FACTS,
    FORMATS,
    TOKEN_IDS,
    WEIGHTS,
    DrafterFacts,
    is_trimmed,
    read_facts,
    read_token_ids,
    write_facts,
    write_weights,
)
from paceline.runtime.embedding import EmbeddingFacts
from paceline.runtime.student import fill, new_student
from paceline.runtime.weights import load_config
from paceline.train.checkpoint import Checkpoint
from paceline.train.student import ATTENTION
from paceline.train.target_folder import TargetFolder

CHECKPOINT = "checkpoint.pt"
_WITH_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def check_format(weights: str, *, trimmed: bool) -> None:
    """Raises InvalidField for a format that the folder cannot have."""
    if weights not in FORMATS:
        raise InvalidField("--weights", weights, ", ".join(FORMATS))
    if weights == "int8" and not trimmed:
        remedy = "A drafter with the whole vocabulary is a model folder of transformers, which does not know this int8."
        raise InvalidField("--weights", weights, "float32 or bfloat16 with --vocab all", remedy)


def begin_run(run: Path, config: Any, facts: DrafterFacts, token_ids: NDArray[np.int32] | None) -> None:
    """Makes a run's folder, still without a checkpoint."""
    run.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(run)
    write_facts(run, facts)
    if token_ids is not None:
        np.save(run / TOKEN_IDS, token_ids)


def export_run(run: Path, out: Path, weights: str, target: TargetFolder) -> dict[str, Any]:
    """Writes the drafter of a run's checkpoint into `out`, each file replaced in one step, `drafter.json` last.

    Args:
        run: the run's folder.
        out: the drafter's; other files in it stay.
        weights: number format of the stored weights.
        target: the run's target.

    Returns:
        Settings and figures of the run, as `drafter.json` has them.

    Raises InvalidField for another target or a format that does not go, ModelDamaged for a damaged run.
    """
    facts, held = read_facts(run, run.name), Checkpoint.read(run / CHECKPOINT)
    token_ids = read_token_ids(run, facts, run.name) if is_trimmed(run) else None
    check_format(weights, trimmed=token_ids is not None)
    if EmbeddingFacts.of(target.embedding) != facts.embedding:
        raise InvalidField("--target", target.name, f"{facts.target}, with the embedding that the run began with")
    config = load_config(run, run.name)
    config.dtype = "float32" if weights == "int8" else weights
    model = new_student(config, target.embedding.float(), facts.columns, ATTENTION, run.name)
    fill(model, held.tensors, run.name)
    figures = _figures(held)
    scratch = out / ".export"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        config.save_pretrained(scratch)
        if token_ids is None:
            write_weights(scratch, model.state_dict(), weights)
            for name in _WITH_TOKENIZER:
                if (target.folder / name).is_file():
                    shutil.copy(target.folder / name, scratch / name)
        else:
            write_weights(scratch, held.tensors, weights)
            np.save(scratch / TOKEN_IDS, token_ids)
        write_facts(scratch, replace(facts, weights=weights, training=figures))
        order = {"config.json": 1, WEIGHTS: 2, FACTS: 3}
        for path in sorted(scratch.iterdir(), key=lambda each: order.get(each.name, 0)):
            os.replace(path, out / path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return figures


def _figures(held: Checkpoint) -> dict[str, Any]:
    place = held.place
    return {
        "settings": held.settings,
        "corpus": held.identity["corpus"],
        "steps": place.step,
        "tokens": place.tokens,
        "seconds": round(place.seconds, 1),
        "tokens_per_s": round(place.tokens / max(place.seconds, 1e-9), 1),
        "untrained": place.metrics[0],
        "validation": place.metrics[-1],
    }
