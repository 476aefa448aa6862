"""The model that is trained, and the batch it learns from: logits at reply tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.runtime.student import fill, new_student, own_tensors, student_config
from paceline.runtime.weights import load_config, load_weights
from paceline.train.batches import Batch

ATTENTION = "sdpa"


class Student:
    """A causal model with a frozen embedding, and a head over `token_ids`."""

    def __init__(self, model: Any, token_ids: NDArray[np.int32] | None) -> None:
        """`token_ids`: [C] id of each column of the head; None: a column is its id."""
        self.model, self.token_ids = model, token_ids
        self._wanted: torch.Tensor | None = None
        # The model's own forward runs, with whatever it does behind its head; only the rows are chosen before it.
        model.get_output_embeddings().register_forward_pre_hook(self._choose)

    def logits(self, batch: Batch) -> torch.Tensor:
        """[R, C] at the tokens before each reply token."""
        self._wanted = batch.wanted
        rows: torch.Tensor = self.model(input_ids=batch.ids, use_cache=False).logits
        return rows[0]

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is trained, by name."""
        return own_tensors(self.model)

    def _choose(self, module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        assert self._wanted is not None
        return (inputs[0].flatten(0, 1).index_select(0, self._wanted).unsqueeze(0),)


def chosen_layers(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """The layers of a target of `count` layers: the first two and the last two unless given. Raises InvalidField."""
    if not layers:
        return tuple(sorted({0, min(1, count - 1), max(0, count - 2), count - 1}))
    if layers[-1] >= count:
        raise InvalidField("--layers", list(layers), f"0 to {count - 1}, as the target has {count} layers")
    return tuple(layers)


def initial_student(
    folder: Path, name: str, layers: Sequence[int], token_ids: NDArray[np.int32] | None, embedding: torch.Tensor
) -> Student:
    """A student that begins as layers, final norm and head of its target, in float32.

    Args:
        folder: the target.
        name: the target, for messages.
        layers: of the target, ascending.
        token_ids: [C] ids of the head; None: all.
        embedding: [ids, width] of the target.

    Raises ModelDamaged or ModelUnsupported.
    """
    config = load_config(folder, name)
    target = load_weights(folder, name, embedding.dtype, ATTENTION)  # as it is stored: it may be large
    head = target.get_output_embeddings().weight.detach()
    if token_ids is not None:
        head = head[torch.from_numpy(token_ids).long()]
    model = new_student(student_config(config, layers), embedding.float(), len(head), ATTENTION, name)
    numbers = {layer: number for number, layer in enumerate(layers)}
    theirs = target.state_dict()
    tensors = {key: theirs[_source(key, numbers)] for key in own_tensors(model) if _source(key, numbers) in theirs}
    heads = [key for key, each in own_tensors(model).items() if each is model.get_output_embeddings().weight]
    fill(model, {**tensors, heads[0]: head}, name)
    return Student(model, token_ids)


def _source(key: str, numbers: dict[int, int]) -> str:
    """The target's name of a student's tensor."""
    before, found, rest = key.partition(".layers.")
    if not found:
        return key
    number, _, behind = rest.partition(".")
    layer = next(layer for layer, own in numbers.items() if own == int(number))
    return f"{before}.layers.{layer}.{behind}"
