"""A linear layer with four-bit weights in groups of 32, each with its scale and lowest value, for CPUs.

The groups are those of GGUF's Q4_1, and weights that were widened from such a file give back its very codes and scales:
every group of it has codes 0 and 15. The kernel takes scales, activations and results in bfloat16; it works through
each row by itself, so that a row comes out the same, bit for bit, in a pass of any size.
"""

from __future__ import annotations

import torch

from paceline.runtime.quantised import GROUP, quantise_groups

OUTPUTS = 16  # the kernel's columns come in such blocks


class Int4Linear(torch.nn.Module):
    """Stands for a `torch.nn.Linear` whose weights it has rounded to four bits."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Takes a linear layer on the CPU; its inputs are a multiple of `GROUP`, its outputs one of `OUTPUTS`."""
        super().__init__()
        self.out_features = linear.out_features
        codes, scale, lowest = quantise_groups(linear.weight.detach())
        self._weights: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        zero = lowest + 8 * scale  # a weight is (code - 8) * scale + zero to the kernel
        self._scale_and_zero = torch.stack((scale.T, zero.T), -1).to(torch.bfloat16).contiguous()  # [groups, out, 2]
        self._bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., out] float32 of [..., in] float32."""
        rows = values.reshape(-1, values.shape[-1]).to(torch.bfloat16).contiguous()
        found: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, self._weights, GROUP, self._scale_and_zero
        ).float()
        if self._bias is not None:
            found += self._bias
        return found.view(*values.shape[:-1], self.out_features)
