"""The lean norm equals the module it replaces, and replaces no other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from paceline.runtime.norms import KernelNorm, LengthNorm, lean_norm


def module(dtype: torch.dtype = torch.float32, eps: float = 1e-5) -> LlamaRMSNorm:
    made = LlamaRMSNorm(48, eps=eps)
    made.weight.data = torch.rand(48) + 0.5
    return made.to(dtype)


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 1e4])
def test_it_equals_the_module(scale: float) -> None:
    """Rows small enough for eps to matter, and large ones; of two axes and of three, as heads are."""
    own = module()
    lean = lean_norm(own)
    assert isinstance(lean, LengthNorm)
    for each in (lean, KernelNorm(own.weight, 1e-5)):
        for shape in ((5, 48), (5, 3, 48)):
            rows = torch.randn(shape) * scale
            torch.testing.assert_close(each(rows), own(rows), rtol=2e-6, atol=1e-12)


def test_bfloat16_is_no_farther_from_the_truth_than_the_module() -> None:
    own = module(torch.bfloat16)
    rows = torch.randn(64, 48).to(torch.bfloat16)
    right = functional.rms_norm(rows.double(), (48,), own.weight.double(), 1e-5)
    lean = lean_norm(own)(rows)
    assert lean.dtype == torch.bfloat16
    assert (lean - right).abs().max() <= (own(rows) - right).abs().max()


def test_a_row_does_not_depend_on_the_others() -> None:
    lean = lean_norm(module())
    rows = torch.randn(7, 48)
    assert torch.equal(lean(rows)[3:4], lean(rows[3:4]))


def test_other_norms_stay() -> None:
    gemma = Gemma3RMSNorm(48)  # its weight counts from 1
    gemma.weight.data = torch.rand(48)
    other = torch.nn.LayerNorm(48)
    for each in (gemma, other, torch.nn.Identity()):
        assert lean_norm(each) is each
