"""A small causal model of a target's family: some of its layers, its embedding, and a head over some of its tokens."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from paceline.errors import ModelDamaged, ModelUnsupported
from paceline.runtime.weights import LOADING, first_line


def student_config(config: Any, layers: Sequence[int]) -> Any:
    """The text configuration of a model with only `layers` of another's, and a head that is not tied.

    Args:
        config: the other model's configuration.
        layers: numbers of the layers that stay, counted from 0.
    """
    text = copy.deepcopy(config.get_text_config(decoder=True))
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and (name.endswith("layer_types") or name == "no_rope_layers"):
            setattr(text, name, [value[layer] for layer in layers])
    text.num_hidden_layers = len(layers)
    text.tie_word_embeddings = False
    return text


def new_student(config: Any, embedding: torch.Tensor, columns: int, attention: str, name: str) -> Any:
    """A model of transformers with random layers and head, and a frozen embedding.

    Args:
        config: as `student_config` makes it.
        embedding: [ids, width]; the model holds this tensor.
        columns: rows of the head.
        attention: name of the attention function.
        name: the model, for messages.

    Raises ModelUnsupported.
    """
    shaped = copy.deepcopy(config)
    shaped.vocab_size, shaped.pad_token_id = columns, None  # a row for padding must lie within the embedding
    try:
        with LOADING:
            model = AutoModelForCausalLM.from_config(shaped, dtype=embedding.dtype, attn_implementation=attention)
        table = model.get_input_embeddings()
        table.weight = torch.nn.Parameter(embedding, requires_grad=False)
        table.num_embeddings = len(embedding)
    except (ValueError, KeyError, ImportError, AttributeError) as error:
        raise ModelUnsupported(f"{name}: no student can be made of its configuration: {first_line(error)}") from error
    model.config.vocab_size, model.config.pad_token_id = len(embedding), config.pad_token_id
    return model


def own_tensors(model: Any) -> dict[str, torch.Tensor]:
    """The student's parameters without its embedding, by name."""
    shared = model.get_input_embeddings().weight
    return {name: each for name, each in model.named_parameters() if each is not shared}


def fill(model: Any, tensors: Mapping[str, torch.Tensor], name: str) -> None:
    """Copies `tensors` into the student: every one of its own parameters, and nothing else.

    Raises ModelDamaged naming a tensor that is missing, of another shape, or too much.
    """
    own = own_tensors(model)
    for what, keys in (("lacks", own.keys() - tensors.keys()), ("has a surplus", tensors.keys() - own.keys())):
        if keys:
            raise ModelDamaged(f"{name}: the checkpoint {what} {', '.join(sorted(keys)[:3])}")
    with torch.no_grad():
        for key, parameter in own.items():
            if parameter.shape != tensors[key].shape:
                shapes = f"{list(tensors[key].shape)}, the configuration says {list(parameter.shape)}"
                raise ModelDamaged(f"{name}: {key} has the shape {shapes}")
            parameter.copy_(tensors[key])
