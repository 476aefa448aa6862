"""Eight-bit weights: within half a step, for every row by itself."""

from __future__ import annotations

import torch

from paceline.runtime.quantised import dequantised, quantised


def test_every_row_is_within_half_its_own_step() -> None:
    weights = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e-6], [1], [1e4]] * 2)
    weights[5] = 0
    norm = torch.rand(40)
    stored = quantised({"head": weights, "norm": norm})
    assert {name: each.dtype for name, each in stored.items()} == {
        "head": torch.int8,
        "head.scale": torch.float32,
        "norm": torch.float32,
    }
    back = dequantised(stored)
    assert torch.equal(back["norm"], norm)
    step = weights.abs().amax(dim=1, keepdim=True) / 127
    assert ((back["head"] - weights).abs() <= 0.501 * step).all()
    assert back["head"][5].eq(0).all()


def test_other_formats_pass_through() -> None:
    held = {"head": torch.ones(2, 3, dtype=torch.bfloat16)}
    assert dequantised(held) == held
