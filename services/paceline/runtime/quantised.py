"""Weights with eight bits: whole numbers and one scale for each output row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

SCALE = ".scale"  # behind the name of a quantised tensor: its scales
_MOST = 127.0


def quantised(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Matrices [rows, n] as int8 with float32 scales [rows] beside them; all else as float32."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.detach().float()
        if values.ndim != 2:
            found[name] = values
            continue
        found[name], found[name + SCALE] = quantise_rows(values)
    return found


def quantise_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, n] int8 from -127 to 127, and scales [rows] float32, of [rows, n]: code times scale is the value, rounded."""
    values = values.float()
    scale = values.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _MOST
    return (values / scale[:, None]).round().clamp(-_MOST, _MOST).to(torch.int8), scale


def dequantised(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that `quantised` was given, to within half a scale, as float32; others as they are."""
    return {
        name: tensor.float() * tensors[name + SCALE][:, None] if tensor.dtype == torch.int8 else tensor
        for name, tensor in tensors.items()
        if not name.endswith(SCALE)
    }
