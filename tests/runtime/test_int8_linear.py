"""The linear layer with eight-bit weights: its numbers, and that a row's do not depend on its company."""

from __future__ import annotations

import pytest
import torch

from paceline.runtime.int8_linear import Int8Linear
from paceline.runtime.number_format import FORMATS, usable
from paceline.runtime.quantised import quantise_rows

pytestmark = pytest.mark.skipif("int8" not in usable(torch.device("cpu")), reason="this processor has no int8 kernel")
SHAPES = [(576, 960), (1536, 576), (64, 32), (33, 7)]


def linear_of(inputs: int, outputs: int, bias: bool) -> torch.nn.Linear:
    torch.manual_seed(inputs)
    return torch.nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def rows_of(inputs: int, count: int = 70) -> torch.Tensor:
    """Rows of very different size, one of them with an outlier as trained models have them, and one of zeros."""
    rows = torch.randn(count, inputs) * torch.logspace(-6, 6, count)[:, None]
    rows[3, 1] = 1e4 * rows[3].abs().max()
    rows[5] = 0
    return rows


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_a_row_is_the_same_bit_for_bit_in_any_company(inputs: int, outputs: int, bias: bool) -> None:
    layer, rows = Int8Linear(linear_of(inputs, outputs, bias)), rows_of(inputs)
    whole = layer(rows)
    assert whole.dtype == torch.float32
    for first in (0, 1, 7, 32):
        for count in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33):
            assert torch.equal(layer(rows[first : first + count]), whole[first : first + count]), (first, count)
    assert torch.equal(layer(rows[None, :9]), whole[None, :9])


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_it_computes_with_its_rounded_weights_and_sixteen_bit_activations(inputs: int, outputs: int) -> None:
    linear, rows = linear_of(inputs, outputs, True), rows_of(inputs)
    codes, scale = quantise_rows(linear.weight)
    weights = codes.double() * scale[:, None].double()
    right = rows.double() @ weights.T + linear.bias.double()
    step = rows.abs().amax(1, keepdim=True).double() / (127 * 256 + 127)
    allowed = 0.51 * step * weights.abs().sum(1) + 1e-6 * (right.abs() + 1)
    assert ((Int8Linear(linear)(rows).double() - right).abs() <= allowed).all()


def test_a_row_that_overflowed_stays_alone() -> None:
    layer, rows = Int8Linear(linear_of(64, 32, False)), rows_of(64, 8)
    right = layer(rows)
    for spoilt in (torch.nan, torch.inf):
        rows[2, 5] = spoilt
        found = layer(rows)
        assert not torch.isfinite(found[2]).any()
        assert torch.equal(found[3:], right[3:])


def test_rows_lie_anyhow_and_may_be_none() -> None:
    """As those of the layer it stands for."""
    layer, rows = Int8Linear(linear_of(64, 32, True)), rows_of(64, 6)
    assert torch.equal(layer(rows.T.contiguous().T), layer(rows))
    assert layer(rows[:0]).shape == (0, 32)


def test_the_format_is_for_cpus() -> None:
    assert FORMATS["int8"].torch_dtype == torch.float32, "activations, norms and KV"
    assert list(usable(torch.device("cuda"))) == ["float32", "bfloat16"]
