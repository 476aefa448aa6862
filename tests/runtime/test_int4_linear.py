"""The linear layer with four-bit weights: the codes of a Q4_1 file come back, and rows do not depend on company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from paceline.runtime.int4_linear import Int4Linear
from paceline.runtime.number_format import usable
from paceline.runtime.quantised import GROUP, quantise_groups

needs_kernel = pytest.mark.skipif("int4" not in usable(torch.device("cpu")), reason="this processor has no kernel")
Q4_1 = GGMLQuantizationType.Q4_1


def widened(outputs: int, inputs: int) -> tuple[torch.Tensor, np.ndarray]:
    """A matrix that was in a Q4_1 file, [outputs, inputs] float32, and its blocks there, [groups, 20] uint8."""
    values = np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32)
    values[0] = np.linspace(3, 4, inputs)  # far from zero
    values[1, :GROUP] = 0.5  # a group of one value
    blocks = quantize(values, Q4_1)
    return torch.from_numpy(dequantize(blocks, Q4_1)), blocks.reshape(-1, 20)


def linear_of(weights: torch.Tensor, bias: bool = False) -> torch.nn.Linear:
    layer = torch.nn.Linear(weights.shape[1], weights.shape[0], bias=bias).requires_grad_(False)
    layer.weight.copy_(weights)
    return layer


def test_what_was_widened_from_q4_1_gives_its_codes_and_scales_back() -> None:
    weights, blocks = widened(48, 96)
    codes, scale, lowest = quantise_groups(weights)
    file_scale, file_lowest = (blocks[:, at : at + 2].copy().view(np.float16)[:, 0] for at in (0, 2))
    file_codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    assert np.array_equal(codes.numpy().reshape(-1, GROUP), file_codes)
    assert np.array_equal(scale.numpy().ravel().astype(np.float16), file_scale)
    assert np.array_equal(lowest.numpy().ravel(), file_lowest.astype(np.float32))
    again = codes.view(48, -1, GROUP) * scale[..., None] + lowest[..., None]
    assert torch.allclose(again.view(48, 96), weights, rtol=0, atol=1e-6)


def test_other_values_are_within_half_a_step_of_their_group() -> None:
    values = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-5, 5, 16)[:, None]
    codes, scale, lowest = quantise_groups(values)
    again = codes.view(16, -1, GROUP) * scale[..., None] + lowest[..., None]
    assert ((again - values.view(16, -1, GROUP)).abs() <= 0.501 * scale[..., None]).all()


@needs_kernel
def test_the_kernel_reads_every_weight_where_it_belongs() -> None:
    """A row that has a single 1 gives one input's weights."""
    weights, _ = widened(48, 96)
    codes, scale, lowest = quantise_groups(weights)
    steps, zero = scale.bfloat16().float(), (lowest + 8 * scale).bfloat16().float()
    right = (codes.view(48, -1, GROUP).float() - 8) * steps[..., None] + zero[..., None]
    found = Int4Linear(linear_of(weights))(torch.eye(96))
    assert found.dtype == torch.float32
    assert torch.equal(found.T, right.view(48, 96).bfloat16().float())
    assert float((found.T - weights).abs().max()) < 2**-7 * float(weights.abs().max())


@needs_kernel
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (1536, 576), (64, 32), (96, 48)])
def test_a_row_is_the_same_bit_for_bit_in_any_company(inputs: int, outputs: int) -> None:
    torch.manual_seed(inputs)
    layer, rows = Int4Linear(linear_of(torch.randn(outputs, inputs), bias=True)), torch.randn(70, inputs)
    whole = layer(rows)
    for first in (0, 1, 7, 32):
        for count in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33):
            assert torch.equal(layer(rows[first : first + count]), whole[first : first + count]), (first, count)
    assert torch.equal(layer(rows[None, :9]), whole[None, :9])
    assert torch.equal(layer(rows[:9].T.contiguous().T), whole[:9]), "however they lie"
