"""The folder of a distilled drafter.

    config.json        configuration of its layers, as transformers writes it; `vocab_size` is the target's
    drafter.json       whose drafter it is (see `DrafterFacts`), how it was trained and what it reached
    model.safetensors  its layers, final norm and head; int8 matrices with a float32 scale for each output row beside
                       them (`NAME.scale`) where `weights` is int8
    token_ids.npy      int32 [C], ascending: the target's id of each row of the head

The embedding is the target's and is not stored. A drafter with the whole vocabulary has an embedding in
`model.safetensors`, no `token_ids.npy`, and the target's tokenizer: an ordinary model folder of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save

from paceline.errors import ModelDamaged
from paceline.runtime.embedding import EmbeddingFacts
from paceline.runtime.quantised import dequantised, quantised
from paceline.runtime.weights import REMEDY, first_line

FORMAT, VERSION = "paceline-drafter", 1
FACTS, WEIGHTS, TOKEN_IDS = "drafter.json", "model.safetensors", "token_ids.npy"
FORMATS = ("float32", "bfloat16", "int8")  # of stored weights


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """Whose drafter it is."""

    target: str  # the model, by the name or folder it was trained with
    tokenizer_fingerprint: str
    embedding: EmbeddingFacts  # of the target
    layers: tuple[int, ...]  # of the target, which its own began as
    columns: int  # rows of the head
    weights: str  # one of FORMATS
    training: Mapping[str, Any]  # settings and figures, for people


def is_trimmed(folder: Path) -> bool:
    """True if the folder holds a drafter whose embedding is its target's."""
    return (folder / FACTS).is_file() and (folder / TOKEN_IDS).is_file()


def write_facts(folder: Path, facts: DrafterFacts) -> None:
    """Writes `drafter.json`."""
    content = {"format": FORMAT, "version": VERSION, **asdict(facts)}
    (folder / FACTS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_facts(folder: Path, name: str) -> DrafterFacts:
    """Reads `drafter.json`. Raises ModelDamaged naming what is wrong with it."""
    path = folder / FACTS
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if (held.pop("format"), held.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f"it is not of a drafter of version {VERSION}")
        facts = DrafterFacts(
            **{**held, "embedding": EmbeddingFacts(**held["embedding"]), "layers": tuple(held["layers"])}
        )
        if facts.weights not in FORMATS:
            raise ValueError(f"weights are {facts.weights!r}, known: {', '.join(FORMATS)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelDamaged(f"{name}: {path.name} cannot be used: {first_line(error)}; {REMEDY}") from error
    return facts


def write_weights(folder: Path, tensors: Mapping[str, torch.Tensor], weights: str) -> None:
    """Writes `model.safetensors` in one of FORMATS."""
    if weights == "int8":
        stored = quantised(tensors)
    else:
        stored = {name: each.detach().to(getattr(torch, weights)) for name, each in tensors.items()}
    stored = {name: each.cpu().contiguous() for name, each in stored.items()}
    (folder / WEIGHTS).write_bytes(save(stored, metadata={"format": "pt"}))  # save_file would make it its owner's only


def read_weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """The tensors of `model.safetensors`, int8 ones made float32. Raises ModelDamaged."""
    try:
        return dequantised(load_file(folder / WEIGHTS))
    except Exception as error:  # safetensors raises its own type for a damaged file
        raise ModelDamaged(f"{name}: {WEIGHTS} cannot be read: {first_line(error)}; {REMEDY}") from error


def read_token_ids(folder: Path, facts: DrafterFacts, name: str) -> NDArray[np.int32]:
    """[columns] int32 ascending ids of the head's rows. Raises ModelDamaged."""
    try:
        ids = np.load(folder / TOKEN_IDS, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ModelDamaged(f"{name}: {TOKEN_IDS} cannot be read: {first_line(error)}; {REMEDY}") from error
    if ids.dtype != np.int32 or ids.shape != (facts.columns,):
        raise ModelDamaged(f"{name}: {TOKEN_IDS} is {ids.dtype} {list(ids.shape)}, not int32 [{facts.columns}]")
    if (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= facts.embedding.rows:
        raise ModelDamaged(f"{name}: {TOKEN_IDS} are not ascending ids below {facts.embedding.rows}")
    return ids
