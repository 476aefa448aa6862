"""Writes a trained student as a drafter folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from paceline.errors import InvalidField
from paceline.runtime.drafter_folder import FACTS, FORMATS, TOKEN_IDS, WEIGHTS, DrafterFacts, write_facts, write_weights
from paceline.train.student import Student

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def check_format(weights: str, vocab: int | None) -> None:
    """Raises InvalidField for a format that the folder cannot have."""
    if weights not in FORMATS:
        raise InvalidField("--weights", weights, ", ".join(FORMATS))
    if vocab is None and weights == "int8":
        remedy = "A drafter with the whole vocabulary is a model folder of transformers, which does not know this int8."
        raise InvalidField("--weights", weights, "float32 or bfloat16 with --vocab all", remedy)


def export(out: Path, student: Student, facts: DrafterFacts, target: Path) -> None:
    """Puts the drafter's files into `out`, each replaced in one step, `drafter.json` last.

    Args:
        out: a folder; other files in it stay.
        student: what was trained.
        facts: whose drafter it is; `weights` says how they are stored.
        target: the target's folder, whose tokenizer goes with a whole vocabulary.
    """
    check_format(facts.weights, None if student.token_ids is None else len(student.token_ids))
    scratch = out / ".export"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        config = student.model.config
        config.dtype = "float32" if facts.weights == "int8" else facts.weights
        config.save_pretrained(scratch)
        tensors = student.tensors()
        if student.token_ids is None:
            tensors = dict(student.model.state_dict())
            for name in _TOKENIZER:
                if (target / name).is_file():
                    shutil.copy(target / name, scratch / name)
        else:
            np.save(scratch / TOKEN_IDS, student.token_ids)
        write_weights(scratch, tensors, facts.weights)
        write_facts(scratch, facts)
        last = {"config.json": 1, WEIGHTS: 2, FACTS: 3}
        for path in sorted(scratch.iterdir(), key=lambda each: (last.get(each.name, 0), each.name)):
            os.replace(path, out / path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
