"""Attention of a packed pass behind one function: each segment over its own KV slots, with an ancestor mask.

Registered with transformers under one name; the pass's layout comes with each call as a keyword, so any number of
models and threads can share the registration. Legend: T nodes of the pass, n nodes of a segment, S visible positions
of a segment, G query heads per KV head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from transformers import AttentionInterface

from paceline.errors import ModelUnsupported
from paceline.runtime.kv import KVCache, TensorStorage
from paceline.runtime.plan import PassPlan
from paceline.speculation.tree import IntArray

NAME = "paceline_packed"
# Keywords by which models of transformers change what attention computes: capped scores, sinks, biases, sparse keys.
CHANGING = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices", "head_mask")


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """One segment of a pass, worked out once for all layers."""

    start: int  # first slot, if its positions are one interval of slots
    visible: int  # S
    slots: torch.Tensor | None  # [S] int64, if they are not
    mask: torch.Tensor | None  # [n * G, S] 0 or -inf; None if a node sees every position


@dataclass(frozen=True, slots=True)
class PassLayout:
    """A pass, worked out once for all layers."""

    storage: TensorStorage
    positions: NDArray[np.int64]  # [T without padding]
    write_slots: torch.Tensor  # [T without padding] int64
    segments: tuple[SegmentLayout, ...]
    rows: list[int]  # n * G of each segment
    tokens: int  # T without padding
    groups: int  # G
    context_length: int  # most tokens of a sequence

    def write(self, layer: int, made: torch.Tensor) -> None:
        """Puts the pass's keys and values into their slots.

        Args:
            layer: number of the layer.
            made: [2 * kv heads, T without padding, head dim], keys before values.
        """
        self.storage.layers[layer].index_copy_(1, self.write_slots, made)

    def mix(self, layer: int, query: torch.Tensor, scaling: float | None) -> torch.Tensor:
        """Attends, segment by segment, over what has been written.

        The G query heads of a KV head are folded into the query axis: no key or value is repeated.

        Args:
            layer: number of the layer.
            query: [kv heads, T without padding, G, head dim].
            scaling: factor of the scores; None is 1 / sqrt(head dim).

        Returns:
            [T without padding, heads * head dim].
        """
        kv_heads, tokens, groups, head_dim = query.shape
        folded = query.reshape(kv_heads, 1, tokens * groups, head_dim)
        split = folded.split(self.rows, 2) if len(self.rows) > 1 else (folded,)
        every_key, every_value = self.storage.heads[layer]
        parts = []
        for segment, rows in zip(self.segments, split, strict=True):
            if segment.slots is None:
                keys = every_key.narrow(2, segment.start, segment.visible)
                values = every_value.narrow(2, segment.start, segment.visible)
            else:
                keys, values = every_key.index_select(2, segment.slots), every_value.index_select(2, segment.slots)
            parts.append(
                functional.scaled_dot_product_attention(rows, keys, values, attn_mask=segment.mask, scale=scaling)
            )
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return mixed.reshape(kv_heads, tokens, -1).transpose(0, 1).reshape(tokens, -1)


def lay_out(plan: PassPlan, kv: KVCache, storage: TensorStorage, groups: int, context_length: int) -> PassLayout:
    """Begins every segment's scratch and works out positions, slots and masks. Raises OutOfPages."""
    device, dtype = storage.whole.device, storage.whole.dtype
    written = [kv.begin(segment.sequence, len(segment), segment.base) for segment in plan.segments]
    runs = [kv.run(segment.sequence) for segment in plan.segments]
    seen = [_seen(segment.parents)[segment.base :] for segment in plan.segments]
    masks = _masks(plan, seen, [run.count for run in runs], groups, dtype, device)
    layouts, positions = [], []
    for segment, run, mask, sets in zip(plan.segments, runs, masks, seen, strict=True):
        slots = torch.from_numpy(run.slots).to(device) if run.start is None else None
        layouts.append(SegmentLayout(run.start or 0, run.count, slots, mask))
        before = kv.length(segment.sequence) - 1
        positions += [before + each.bit_count() for each in sets]
    return PassLayout(
        storage,
        np.array(positions, dtype=np.int64),
        torch.from_numpy(np.concatenate(written)).to(device),
        tuple(layouts),
        [len(segment) * groups for segment in plan.segments],
        len(positions),
        groups,
        context_length,
    )


def _seen(parents: IntArray) -> list[int]:
    """The nodes that each node sees below the committed tokens, its ancestors and itself, as a set of bits."""
    sets: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        sets.append((sets[parent] if parent >= 0 else 0) | 1 << node)
    return sets


def _masks(
    plan: PassPlan, seen: list[list[int]], visible: list[int], groups: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor | None]:
    """[n * G, S] 0 or -inf for each segment, all parts of one buffer; None for a node alone, which sees everything."""
    nodes = [len(segment.parents) for segment in plan.segments]
    most = max(nodes)
    if most == 1:
        return [None] * len(nodes)
    width = (most + 7) // 8
    packed = b"".join(each.to_bytes(width, "little") for sets in seen for each in sets)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(-1, width), axis=1, count=most, bitorder="little")
    added = np.where(bits, np.float32(0), np.float32(-np.inf))[:, None]  # [T, 1, most]
    sizes = [
        len(sets) * groups * count if own > 1 else 0 for sets, count, own in zip(seen, visible, nodes, strict=True)
    ]
    host = np.zeros(sum(sizes), dtype=np.float32)
    first, end = 0, 0
    for sets, count, own, size in zip(seen, visible, nodes, sizes, strict=True):
        last = first + len(sets)
        if size:
            host[end : end + size].reshape(-1, groups, count)[:, :, count - own :] = added[first:last, :, :own]
        first, end = last, end + size
    parts = torch.from_numpy(host).to(device, dtype).split(sizes)
    return [part.view(-1, count) if len(part) else None for part, count in zip(parts, visible, strict=True)]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    paceline_layout: PassLayout,
    **features: Any,
) -> tuple[torch.Tensor, None]:
    """Writes the pass's keys and values and attends, for models of transformers.

    Args:
        module: the model's attention layer; its `layer_idx` picks the storage.
        query: [1, heads, T, head dim].
        key: [1, kv heads, T, head dim].
        value: [1, kv heads, T, head dim].
        attention_mask: None; masks are part of the layout.
        scaling: factor of the scores; None is 1 / sqrt(head dim).
        paceline_layout: the pass.
        features: what else a model hands its attention.

    Returns:
        [1, T, heads, head dim], zero for padding; and no weights.

    Raises ModelUnsupported for features that would change the result, such as soft-capped scores.
    """
    _refuse(module, attention_mask, paceline_layout.context_length, features)
    layer, tokens = int(module.layer_idx), paceline_layout.tokens  # type: ignore[arg-type]
    paceline_layout.write(layer, torch.cat((key[0, :, :tokens], value[0, :, :tokens])))
    heads, padded, head_dim = query.shape[1:]
    grouped = query[0, :, :tokens].unflatten(0, (-1, paceline_layout.groups)).transpose(1, 2)
    mixed = functional.pad(paceline_layout.mix(layer, grouped, scaling), (0, 0, 0, padded - tokens))
    return mixed.view(1, padded, heads, head_dim), None


def _refuse(
    module: torch.nn.Module, attention_mask: torch.Tensor | None, context_length: int, features: dict[str, Any]
) -> None:
    for feature in CHANGING:
        if features.get(feature) is not None:
            raise ModelUnsupported(f"its attention uses {feature}, which the packed pass does not compute")
    if attention_mask is not None:
        raise ModelUnsupported("its layers make attention masks of their own, which the packed pass would ignore")
    if features.get("is_causal", getattr(module, "is_causal", True)) is False:
        raise ModelUnsupported("its attention looks ahead (is_causal is False)")
    window = features.get("sliding_window")
    if window is not None and window < context_length:
        raise ModelUnsupported(
            f"a layer attends over {window} tokens only, less than the context limit of {context_length} that follows "
            "from its configuration"
        )


AttentionInterface.register(NAME, attend)
