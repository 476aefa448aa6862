"""The embedding of a model folder, read without the rest of the model, and its fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from paceline.errors import ModelDamaged
from paceline.runtime.weights import REMEDY, first_line, load_weights

_KEY = "embed_tokens.weight"  # how Llama-like models end its name
_ROWS = 8192  # hashed at a time


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """What makes an embedding this one."""

    rows: int  # ids that can be embedded
    width: int  # numbers an id
    sha256: str  # over shape and values as float32, so that a file in bfloat16 and its widened copy agree

    @classmethod
    def of(cls, weight: torch.Tensor) -> EmbeddingFacts:
        """Of a weight [rows, width] of any number format."""
        rows, width = weight.shape
        digest = hashlib.sha256(f"{rows} {width} ".encode())
        for part in weight.detach().cpu().split(_ROWS):
            digest.update(part.float().contiguous().numpy().astype("<f4", copy=False).data)
        return cls(rows, width, digest.hexdigest())


def read_embedding(folder: Path, name: str) -> torch.Tensor:
    """The embedding of a model folder: [rows, width] in the number format of its file.

    Reads one tensor where the folder holds safetensors with a usual name for it, else loads the model.
    Raises ModelDamaged or ModelUnsupported.
    """
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                found += [file.get_tensor(key) for key in file.keys() if key.endswith(_KEY)]  # noqa: SIM118
        except Exception as error:  # safetensors raises its own type for a damaged file
            raise ModelDamaged(f"{name}: {path.name} cannot be read: {first_line(error)}; {REMEDY}") from error
    if len(found) == 1:
        weight: torch.Tensor = found[0]
        return weight
    weight = load_weights(folder, name, torch.float32, "sdpa").get_input_embeddings().weight
    return weight.detach()
