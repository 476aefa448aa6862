"""A run on the disk: weights, optimizer and place, in one file that is replaced in one step."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline.errors import ModelDamaged

FORMAT, VERSION = "paceline-training", 1


@dataclass(slots=True)
class Place:
    """Where a run is."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch's plan; the next to be learned from
    seconds: float = 0.0  # of training so far, validation included
    tokens: int = 0  # learned from so far, without padding
    metrics: list[dict[str, Any]] = field(default_factory=list)  # one a validation


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run that can go on."""

    settings: dict[str, Any]
    identity: dict[str, Any]  # of corpus and target
    place: Place
    tensors: dict[str, torch.Tensor]
    optimizer: dict[str, Any]

    def write(self, path: Path) -> None:
        """Replaces the file in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        content = {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "identity": self.identity,
            "place": asdict(self.place),
            "tensors": {name: each.detach().cpu() for name, each in self.tensors.items()},
            "optimizer": self.optimizer,
        }
        with scratch.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Raises ModelDamaged naming the file."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if (content.pop("format"), content.pop("version")) != (FORMAT, VERSION):
                raise ValueError(f"it is not of a run of version {VERSION}")
            return cls(**{**content, "place": Place(**content["place"])})
        except Exception as error:  # torch raises many types for a damaged file
            reason = str(error).strip().partition("\n")[0]
            raise ModelDamaged(f"{path} cannot be read: {reason}; remove it to begin anew") from error
