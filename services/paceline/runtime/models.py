"""Which models can be served: a choice of weights, and the checks that refuse what would be served wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import InvalidField, ModelUnsupported
from paceline.runtime.number_format import CHOICES, FORMATS, NumberFormat, check_kernels, usable

# What a configuration calls the number of tokens a layer looks back, and the kind of layer that does.
WINDOWS = (
    ("sliding_window", "sliding_attention"),
    ("sliding_window_size", "sliding_attention"),
    ("attention_chunk_size", "chunked_attention"),
)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Weights and how to hold them."""

    path: str  # a local folder
    name: str = ""  # shown to users; the folder's name if empty
    dtype: str = "auto"  # one of `number_format.CHOICES`; auto: see `number_format`
    drafts: bool = False  # its rows only guess: auto may round them
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

    def number_format(self) -> NumberFormat:
        """The number format. auto is bfloat16 on a GPU; on a CPU float32, or int4 for a model that drafts if it can be.

        Raises InvalidField for an unknown one, and for one that the device has no kernel for.
        """
        device = self.resolved_device()
        if self.dtype == "auto":
            return FORMATS[self._auto(device)]
        if self.dtype not in FORMATS:
            raise InvalidField("dtype", self.dtype, ", ".join(CHOICES))
        check_kernels(FORMATS[self.dtype], device)
        return FORMATS[self.dtype]

    def _auto(self, device: torch.device) -> str:
        if device.type == "cuda":
            return "bfloat16"
        return "int4" if self.drafts and "int4" in usable(device) else "float32"


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
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"})
    if unknown:
        raise ModelUnsupported(
            f"{name}: it has layers of {', '.join(unknown)}; only full, sliding and chunked attention are served, "
            "since other state cannot be rolled back along a draft tree"
        )
    positions = int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 0) or 0)
    if not positions:
        raise ModelUnsupported(f"{name}: its configuration states no longest context (max_position_embeddings)")
    limits = [ContextLimit(positions, f"{name} was trained for {positions} positions")]
    for field, kind in WINDOWS:
        window = getattr(config, field, None)
        if window and (kind in kinds if kinds else getattr(config, "use_sliding_window", True)):
            why = f"{name} has a {field} of {window}, beyond which attention would have to slide"
            limits.append(ContextLimit(int(window), why))
    limits += [
        ContextLimit(original, f"{name} turns its positions by other factors (longrope) beyond {original} tokens")
        for original in _longrope_limits(config)
    ]
    return min(limits, key=lambda limit: limit.tokens)


def _longrope_limits(config: Any) -> list[int]:
    """Tokens beyond which the longest context of a pass would change the positions of every session in it."""
    named = getattr(config, "rope_parameters", None) or {}
    by_kind = [each for each in named.values() if isinstance(each, dict)] or [named]
    return [
        int(each.get("original_max_position_embeddings") or config.max_position_embeddings)
        for each in by_kind
        if each.get("rope_type") == "longrope"
    ]


@dataclass(frozen=True, slots=True)
class KVShape:
    """Keys and values of one token."""

    layers: int
    heads: int  # KV heads
    groups: int  # query heads per KV head
    head_dim: int

    @classmethod
    def of(cls, config: Any, name: str) -> KVShape:
        """From a model's text configuration. Raises ModelUnsupported if it does not say."""
        try:
            query_heads = int(config.num_attention_heads)
            heads = int(getattr(config, "num_key_value_heads", None) or query_heads)
            head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // query_heads)
            return cls(int(config.num_hidden_layers), heads, query_heads // heads, head_dim)
        except (AttributeError, TypeError) as error:
            raise ModelUnsupported(f"{name}: its configuration does not describe plain attention: {error}") from error


def eos_token_ids(*configs: Any) -> frozenset[int]:
    """The whole set of end tokens named by a model's configurations; each may hold one id, a list, or nothing."""
    found: set[int] = set()
    for config in configs:
        named = getattr(config, "eos_token_id", None)
        if named is not None:
            found.update([named] if isinstance(named, int) else named)
    return frozenset(found)
