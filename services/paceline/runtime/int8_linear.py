"""A linear layer with eight-bit weights, for CPUs that multiply bytes fast.

Weights have one scale for each output. A row of activations becomes whole numbers of sixteen bits by a scale of its
own, and these two bytes each, a high and a low one: two rows of a product of bytes. With the high bytes alone the
default model lost 4 % of perplexity, and differences of 1e-7, which attention's kernels make, grew to a tenth of the
spread of the logits; with both it lost 0.1 %, and they stayed below a thousandth. A pass of few rows spends its time on
weights anyway.

Nothing of a row depends on other rows of its pass. Products are summed as whole numbers, which is exact in any order,
so that a row comes out the same, bit for bit, in a pass of any size. Legend: T rows.
"""

from __future__ import annotations

import torch

from paceline.runtime.quantised import quantise_rows

ZERO = 128  # bytes stand for -128 to 127: the kernel that is fast takes no signed ones
MOST = 127 * 256 + 127  # of a whole number: of its bytes, each without ZERO, the high one counts 256 times
OFFSET = ZERO * 256 + ZERO + 0.5  # makes bytes of whole numbers; the half, since what follows the point is cut off
LEAST = 1e-30  # of a row's largest value: a row of zeros stays one
MOST_INPUTS = (2**31 - 1) // (255 * 127)  # so that no sum overflows 32 bits


class Int8Linear(torch.nn.Module):
    """Stands for a `torch.nn.Linear` whose weights it has rounded to eight bits."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Takes a linear layer in float32, on the CPU, of at most `MOST_INPUTS` inputs."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        codes, scale = quantise_rows(linear.weight.detach())
        self._weights = pack_bytes(codes)
        self._scale = scale / MOST  # [out] float32; the largest value of a row of activations is MOST
        self._zero = torch.zeros(len(scale), dtype=torch.int64)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., out] float32 of [..., in] float32."""
        rows = values.reshape(-1, self.in_features).contiguous()
        largest = rows.abs().amax(1, keepdim=True).clamp_min_(LEAST)  # [T, 1]
        whole = (rows * (MOST / largest)).add_(OFFSET).to(torch.int32)
        octets = whole.view(torch.uint8).view(*rows.shape, 4)[..., :2].permute(2, 0, 1)  # [2, T, in], low bytes first
        found = multiply_bytes(octets.reshape(-1, self.in_features), self._weights, self._scale, self._zero)
        low, high = found.view(2, len(rows), self.out_features)
        found = low.add_(high, alpha=256).mul_(largest)
        if self._bias is not None:
            found += self._bias
        return found.view(*values.shape[:-1], self.out_features)


def pack_bytes(codes: torch.Tensor) -> torch.Tensor:
    """[out, in] int8, in the order in which `multiply_bytes` reads them."""
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(codes, None)
    return packed


def multiply_bytes(rows: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """[T, out] float32: whole sums of products, each times its output's scale.

    Args:
        rows: [T, in] uint8, of which `ZERO` is taken.
        weights: see `pack_bytes`.
        scale: [out] float32.
        zero: [out] int64 zeros.
    """
    found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, ZERO, weights, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found
