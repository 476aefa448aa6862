"""Number formats of a model, and which of them this machine has kernels for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.errors import InvalidField
from paceline.runtime.int8_linear import multiply_bytes, pack_bytes


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How a model is held and computed."""

    name: str  # what `dtype` says
    torch_dtype: torch.dtype  # of embedding, norms, activations and KV
    linear_bits: int | None = None  # of the weights of linear layers; None: as everything else


# No float16: its range is too small for some models (Gemma), whose rows then hold NaN.
FORMATS = {
    each.name: each
    for each in (
        NumberFormat("float32", torch.float32),
        NumberFormat("bfloat16", torch.bfloat16),
        NumberFormat("int8", torch.float32, 8),
        NumberFormat("int4", torch.float32, 4),
    )
}
CHOICES = ("auto", *FORMATS)


def check_kernels(number_format: NumberFormat, device: torch.device) -> None:
    """Raises InvalidField if there is no kernel for a format on a device."""
    if number_format.linear_bits is None:
        return
    missing = _missing(device)
    if missing is not None:
        allowed = ", ".join(("auto", *usable(device)))
        raise InvalidField("dtype", number_format.name, f"{allowed} on this device", f"{missing}.")


def usable(device: torch.device) -> Sequence[str]:
    """The formats that there are kernels for on a device."""
    return [each.name for each in FORMATS.values() if each.linear_bits is None or _missing(device) is None]


def _missing(device: torch.device) -> str | None:
    """What low-bit kernels lack, as a sentence without its full stop; None if they are there."""
    if device.type != "cpu":
        return "int8 and int4 are formats of CPUs; a GPU has bfloat16"
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return f"int8 and int4 need a processor with AVX2 or AVX-512, this one has {capability}"
    if not _sums_are_exact():  # int4 has a head of eight bits
        return "int8 and int4 need a processor that adds products of bytes exactly (VNNI), this one saturates"
    return None


def _sums_are_exact() -> bool:
    """False where the largest products of bytes overflow on their way into a sum, as without VNNI."""
    if not torch.backends.mkldnn.is_available():
        return False
    width, columns = 64, 16
    weights = pack_bytes(torch.full((columns, width), 127, dtype=torch.int8))
    most = torch.full((1, width), 255, dtype=torch.uint8)
    found = multiply_bytes(most, weights, torch.ones(columns), torch.zeros(columns, dtype=torch.int64))
    return bool((found == float(width * 127 * 127)).all())
