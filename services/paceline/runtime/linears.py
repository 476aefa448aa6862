"""The linear layers of a loaded model: fused where they read the same input, and in the number format asked for."""

from __future__ import annotations

from typing import Any

import torch

from paceline.errors import InvalidField
from paceline.runtime.fused_linear import fuse_linears
from paceline.runtime.int8_linear import MOST_INPUTS, Int8Linear
from paceline.runtime.number_format import NumberFormat


def prepare_linears(model: Any, number_format: NumberFormat, name: str) -> None:
    """Fuses projections, and replaces every linear layer, the head among them, where the format has low-bit weights.

    The embedding stays as it is, also where the head is tied to it.

    Args:
        model: a causal model of transformers, on its device.
        number_format: how to hold it; its kernels are there.
        name: the model, for messages.

    Raises InvalidField naming a layer that the format cannot hold.
    """
    fuse_linears(model)
    if number_format.linear_bits is None:
        return
    _refuse_others(model, number_format, name)
    for parent, child, linear in _linears(model):
        if linear.in_features > MOST_INPUTS:
            reason = f"{child} of {name} has {linear.in_features} inputs, more than {MOST_INPUTS}"
            raise _unfit(number_format, reason)
        setattr(parent, child, Int8Linear(linear))


def _linears(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.nn.Linear]]:
    """Linear layers, each with the module that it is a child of, and its name there."""
    return [
        (parent, child, module)
        for parent in model.modules()
        for child, module in parent.named_children()
        if type(module) is torch.nn.Linear
    ]


def _refuse_others(model: torch.nn.Module, number_format: NumberFormat, name: str) -> None:
    """Experts in one tensor, and whatever else holds matrices that are no linear layers."""
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            continue
        for parameter, values in module.named_parameters(recurse=False):
            if values.ndim > 1:
                reason = f"{path}.{parameter} of {name} is not the weight of a linear layer"
                raise _unfit(number_format, reason)


def _unfit(number_format: NumberFormat, reason: str) -> InvalidField:
    return InvalidField("dtype", number_format.name, "auto, float32 or bfloat16 with this model", f"{reason}.")
