"""A drafter that was trained before, as what a run begins with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.runtime.drafter_folder import is_trimmed, read_facts, read_token_ids, read_weights
from paceline.runtime.embedding import EmbeddingFacts
from paceline.runtime.student import fill, new_student
from paceline.runtime.weights import load_config
from paceline.train.settings import TrainSettings
from paceline.train.student import ATTENTION, Student
from paceline.train.target_folder import TargetFolder


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Its model and what the model is made of."""

    student: Student
    layers: tuple[int, ...]  # of the target, which its own began as
    token_ids: NDArray[np.int32]  # [C] ids of its head

    @classmethod
    def read(cls, folder: Path, target: TargetFolder, settings: TrainSettings) -> Start:
        """From a drafter's folder with a trimmed head.

        Raises InvalidField for another target's, or for settings that it cannot have; ModelDamaged.
        """
        if not is_trimmed(folder):
            raise InvalidField("--start", str(folder), "the folder of a drafter with a trimmed head")
        facts = read_facts(folder, folder.name)
        if facts.embedding != EmbeddingFacts.of(target.embedding):
            raise InvalidField("--start", str(folder), f"a drafter of {target.name}, which has its embedding")
        if settings.layers and settings.layers != facts.layers:
            raise InvalidField("--layers", list(settings.layers), f"absent with --start, or {list(facts.layers)}")
        if settings.vocab != facts.columns:
            raise InvalidField("--vocab", settings.vocab, f"{facts.columns} with --start, as its head has")
        config = load_config(folder, folder.name)
        model = new_student(config, target.embedding.float(), facts.columns, ATTENTION, folder.name)
        fill(model, read_weights(folder, folder.name), folder.name)
        token_ids = read_token_ids(folder, facts, folder.name)
        return cls(Student(model.float(), token_ids), facts.layers, token_ids)
