"""The linear layers of a loaded model in the number format asked for."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch

from paceline.errors import InvalidField
from paceline.runtime.fused_linear import fuse_linears
from paceline.runtime.int4_linear import OUTPUTS, Int4Linear
from paceline.runtime.int8_linear import MOST_INPUTS, Int8Linear
from paceline.runtime.number_format import FORMATS, NumberFormat
from paceline.runtime.quantised import GROUP

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A linear layer and where it is."""

    parent: torch.nn.Module
    name: str  # of the parent's attribute
    path: str  # from the model
    linear: torch.nn.Linear
    bits: int  # of its weights, to be


def prepare_linears(model: Any, number_format: NumberFormat, name: str, *, chosen: bool) -> NumberFormat:
    """Fuses projections and replaces every linear layer where the format has low-bit weights; other models it leaves.

    The head has eight bits in int4 too. The embedding stays as it is, also where the head is tied to it.

    Args:
        model: a causal model of transformers, on its device.
        number_format: how to hold it; its kernels are there.
        name: the model, for messages.
        chosen: someone chose the format; if not, a model that cannot have it is held in float32.

    Returns:
        The format it has now.

    Raises InvalidField naming a layer that the format cannot hold.
    """
    if number_format.linear_bits is None:
        return number_format  # fused, its passes were measured to be no faster
    fuse_linears(model)
    places = _places(model, number_format.linear_bits)
    unfit = _unfit(model, places)
    if unfit is not None and chosen:
        raise InvalidField("dtype", number_format.name, f"auto, float32 or bfloat16 for {name}", f"{unfit}.")
    if unfit is not None:
        log.info("%s: float32 instead of %s: %s", name, number_format.name, unfit)
        return FORMATS["float32"]
    for place in places:
        setattr(place.parent, place.name, (Int8Linear if place.bits == 8 else Int4Linear)(place.linear))
    return number_format


def _places(model: Any, bits: int) -> list[Place]:
    head = model.get_output_embeddings()
    return [
        Place(parent, child, f"{path}.{child}".lstrip("."), module, 8 if module is head else bits)
        for path, parent in model.named_modules()
        for child, module in parent.named_children()
        if type(module) is torch.nn.Linear
    ]


def _unfit(model: torch.nn.Module, places: list[Place]) -> str | None:
    """The first reason why a model cannot have low-bit weights, as a sentence without its full stop; None if it can."""
    for path, module in model.named_modules():  # experts in one tensor, and other matrices that are no linear layers
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            continue
        for parameter, values in module.named_parameters(recurse=False):
            if values.ndim > 1:
                return f"{path}.{parameter} is not the weight of a linear layer"
    for each in places:
        inputs, outputs = each.linear.in_features, each.linear.out_features
        if each.bits == 8 and inputs > MOST_INPUTS:
            return f"{each.path} has {inputs} inputs, more than {MOST_INPUTS}"
        if each.bits == 4 and (inputs % GROUP or outputs % OUTPUTS):
            return f"{each.path} is {inputs} by {outputs}; int4 takes multiples of {GROUP} by multiples of {OUTPUTS}"
    return None
