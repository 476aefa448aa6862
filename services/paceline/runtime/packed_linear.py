"""A linear layer whose weights lie in the order in which oneDNN's kernels read them.

A pass over a draft tree has some rows more than one. From three rows on, a product with weights as they are stored
first puts them in another order, in every pass: on two cores with AVX-512 the linear layers of the default model took
20 ms for one row and 50 for eight in float32, 22 and 43 in bfloat16. Ordered once, at load, they took 23 and 32, and
16 and 32: rows of a draft tree became cheap.
"""

from __future__ import annotations

import torch

ROWS = 8  # of a usual pass; the order is chosen for it, and serves any number of rows


class PackedLinear(torch.nn.Module):
    """Stands for a `torch.nn.Linear` that `is_packable`; computes the same numbers to rounding."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Takes the weights of `linear`, which may go."""
        super().__init__()
        self._weights = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[..., out] of [..., in], in the number format of the weights."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(values, self._weights, self._bias, "none", [], "")
        return found


def is_packable(dtype: torch.dtype, device: torch.device) -> bool:
    """True if this build of torch has oneDNN's kernels, for this machine."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
