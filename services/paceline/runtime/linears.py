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
from paceline.runtime.packed_linear import PackedLinear, is_packable
from paceline.runtime.quantised import GROUP

log = logging.getLogger(__name__)


KINDS = {None: PackedLinear, 8: Int8Linear, 4: Int4Linear}  # by bits of a weight


class Place(NamedTuple):
    """A linear layer and where it is."""

    parent: torch.nn.Module
    name: str  # of the parent's attribute
    path: str  # from the model
    linear: torch.nn.Linear
    bits: int | None  # of its weights, to be; None: as they are


def prepare_linears(model: Any, number_format: NumberFormat, name: str, *, chosen: bool) -> NumberFormat:
    """Fuses projections and replaces every linear layer by one with kernels for few rows, where there are some.

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
    bits, device = number_format.linear_bits, next(model.parameters()).device
    if bits is None and not is_packable(number_format.torch_dtype, device):
        return number_format
    fuse_linears(model)
    places = _places(model, bits)
    unfit = None if bits is None else _unfit(model, places)
    if unfit is not None and chosen:
        raise InvalidField("dtype", number_format.name, f"auto, float32 or bfloat16 for {name}", f"{unfit}.")
    if unfit is not None:
        log.info("%s: float32 instead of %s: %s", name, number_format.name, unfit)
        return prepare_linears(model, FORMATS["float32"], name, chosen=False)
    for place in places:
        setattr(place.parent, place.name, KINDS[place.bits](place.linear))
    return number_format


def _places(model: Any, bits: int | None) -> list[Place]:
    head = model.get_output_embeddings()
    return [
        Place(parent, child, f"{path}.{child}".lstrip("."), module, 8 if bits == 4 and module is head else bits)
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
