"""Projections of one input as one matrix product: queries, keys and values, and gate and up.

The fused layer joins its parent under a name of its own. The single projections stay where the model calls them: the
first that is called with an input computes all of them, the others take their share of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# What the projections are called, and the fused layer beside them.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Together:
    """The outputs of a fused layer for the input that it saw last, until each part was taken once."""

    def __init__(self, parent: torch.nn.Module, name: str, widths: Sequence[int]) -> None:
        """`parent` has the fused layer as `name`; `widths`: outputs of the parts, in order."""
        self._parent, self._name, self._widths = parent, name, list(widths)
        self._seen: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def part(self, number: int, values: torch.Tensor) -> torch.Tensor:
        """Outputs of one part, [..., out], of `values`, [..., in]."""
        if values is not self._seen or number not in self._parts:
            made: torch.Tensor = getattr(self._parent, self._name)(values)
            self._seen, self._parts = values, dict(enumerate(made.split(self._widths, -1)))
        found = self._parts.pop(number)
        if not self._parts:
            self._seen = None
        return found


class Part(torch.nn.Module):
    """One projection of a fused layer, in its old place."""

    def __init__(self, together: Together, number: int) -> None:
        super().__init__()
        self._together, self._number = together, number

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., out] of [..., in]."""
        return self._together.part(self._number, values)


def fuse_linears(model: torch.nn.Module) -> None:
    """Fuses the projections known by name, wherever they are linear layers of one input width and one kind.

    The model then computes the same numbers to rounding. Nothing else is touched.
    """
    for parent in list(model.modules()):
        for name, parts in FUSED.items():
            linears = [getattr(parent, part, None) for part in parts]
            if not hasattr(parent, name) and _alike(linears):
                _fuse(parent, name, parts, linears)


def _alike(linears: Sequence[Any]) -> bool:
    return all(type(each) is torch.nn.Linear for each in linears) and 1 == len(
        {(each.in_features, each.weight.dtype, each.weight.device, each.bias is None) for each in linears}
    )


def _fuse(parent: torch.nn.Module, name: str, parts: Sequence[str], linears: Sequence[Any]) -> None:
    widths = [each.out_features for each in linears]
    fused = torch.nn.Linear(linears[0].in_features, sum(widths), bias=False, device="meta")
    fused.weight = torch.nn.Parameter(torch.cat([each.weight.detach() for each in linears]), requires_grad=False)
    biases = [each.bias.detach() for each in linears if each.bias is not None]
    if biases:
        fused.bias = torch.nn.Parameter(torch.cat(biases), requires_grad=False)
    parent.add_module(name, fused)
    together = Together(parent, name, widths)
    for number, part in enumerate(parts):
        setattr(parent, part, Part(together, number))
