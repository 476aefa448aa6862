"""Weights with eight bits, one scale for each output row, and with four bits, in groups."""

from __future__ import annotations

from collections.abc import Mapping

import torch

SCALE = ".scale"  # behind the name of a quantised tensor: its scales
GROUP = 32  # values that share a scale where they have four bits
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
    """[rows, n] int8 from -127 to 127, and scales [rows] float32, of [rows, n]: a code times its scale is the value."""
    values = values.float()
    scale = values.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _MOST
    return (values / scale[:, None]).round().clamp(-_MOST, _MOST).to(torch.int8), scale


def quantise_groups(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four-bit codes, in groups of `GROUP` values: a code times its group's scale, and the lowest value, is the value.

    Args:
        values: [rows, n]; n is a multiple of `GROUP`.

    Returns:
        Codes [rows, n] uint8 from 0 to 15; scales and lowest values, [rows, n / GROUP] float32.
    """
    groups = values.float().unflatten(1, (-1, GROUP))
    lowest, highest = groups.aminmax(dim=2)
    scale = (highest - lowest) / 15
    steps = (groups - lowest[..., None]) / scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    return steps.round().clamp(0, 15).to(torch.uint8).flatten(1), scale, lowest


def dequantised(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that `quantised` was given, to within half a scale, as float32; others as they are."""
    return {
        name: tensor.float() * tensors[name + SCALE][:, None] if tensor.dtype == torch.int8 else tensor
        for name, tensor in tensors.items()
        if not name.endswith(SCALE)
    }
