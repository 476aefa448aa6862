"""Which models can be served: a choice of weights, and the checks that refuse what would be served wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from paceline.errors import InvalidField, ModelUnsupported

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weights and how to hold them."""

    path: str  # a local folder
    name: str = ""  # shown to users; the folder's name if empty
    dtype: str = "auto"  # float32 on CPU, bfloat16 on GPU
    device: str = "auto"  # cuda where there is one, else cpu

    def resolved_device(self) -> torch.device:
        """The device. Raises InvalidField if it is not there."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise InvalidField("device", self.device, "auto, cpu, cuda or cuda:N") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InvalidField("device", self.device, "auto or cpu", "no CUDA device is visible to this process")
        return device

    def resolved_dtype(self) -> torch.dtype:
        """The number format. Raises InvalidField for an unknown one."""
        if self.dtype == "auto":
            return torch.bfloat16 if self.resolved_device().type == "cuda" else torch.float32
        if self.dtype not in DTYPES:
            raise InvalidField("dtype", self.dtype, "auto, " + ", ".join(DTYPES))
        return DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """How far a model can be served."""

    tokens: int
    reason: str


def context_limit(config: Any, name: str) -> ContextLimit:
    """The longest context that the packed pass computes exactly.

    Raises ModelUnsupported for encoder-decoders and for recurrent or otherwise stateful layers, whose state cannot be
    rolled back along a tree.

    Args:
        config: the model's text configuration.
        name: the model, for the message.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ModelUnsupported(f"{name}: it is an encoder-decoder; only decoder-only models can be served")
    kinds = list(getattr(config, "layer_types", None) or [])
    unknown = sorted(
        {kind for kind in kinds if kind not in ("full_attention", "sliding_attention", "chunked_attention")}
    )
    if unknown:
        raise ModelUnsupported(
            f"{name}: it has {', '.join(unknown)} layers, whose state cannot be rolled back along a draft tree"
        )
    positions = int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 0) or 0)
    if not positions:
        raise ModelUnsupported(f"{name}: its configuration states no longest context (max_position_embeddings)")
    limit = ContextLimit(positions, f"{name} was trained for {positions} positions")
    for field, kind in (("sliding_window", "sliding_attention"), ("attention_chunk_size", "chunked_attention")):
        window = getattr(config, field, None)
        used = kind in kinds if kinds else getattr(config, "use_sliding_window", True)
        if window and used and window < limit.tokens:
            limit = ContextLimit(
                int(window), f"{name} has a {field} of {window}, beyond which attention would have to slide"
            )
    return limit


def eos_token_ids(*configs: Any) -> frozenset[int]:
    """The whole set of end tokens named by a model's configurations; each may hold one id, a list, or nothing."""
    found: set[int] = set()
    for config in configs:
        named = getattr(config, "eos_token_id", None)
        if named is not None:
            found.update([named] if isinstance(named, int) else named)
    return frozenset(found)
