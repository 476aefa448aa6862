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
from paceline.runtime.plan import PassPlan, Segment
from paceline.speculation.tree import IntArray

NAME = "paceline_packed"
# Keywords by which models of transformers change what attention computes: capped scores, sinks, biases, sparse keys.
CHANGING = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices", "head_mask")


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """One segment of a pass, worked out once for all layers."""

    first: int  # its nodes are [first, last) of the pass
    last: int
    views: tuple[torch.Tensor, ...] | None  # keys and values by turns, [kv heads, 1, S, head dim]: two a layer
    slots: torch.Tensor | None  # [S] int64, if its positions are not one interval of slots and there are no views
    mask: torch.Tensor | None  # [n * G, S] 0 or -inf; None if a node sees every position


@dataclass(frozen=True, slots=True)
class PassLayout:
    """A pass, worked out once for all layers."""

    storage: TensorStorage
    write_slots: torch.Tensor  # [T without padding] int64
    segments: tuple[SegmentLayout, ...]
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
        parts = []
        for segment in self.segments:
            if segment.views is not None:
                keys, values = segment.views[2 * layer], segment.views[2 * layer + 1]
            else:
                own = self.storage.layers[layer].index_select(1, segment.slots).unsqueeze(1)  # type: ignore[arg-type]
                keys, values = own[:kv_heads], own[kv_heads:]
            rows = folded[:, :, segment.first * groups : segment.last * groups]
            parts.append(
                functional.scaled_dot_product_attention(rows, keys, values, attn_mask=segment.mask, scale=scaling)
            )
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        return mixed.reshape(kv_heads, tokens, groups * head_dim).transpose(0, 1).reshape(tokens, -1)


def lay_out(plan: PassPlan, kv: KVCache, storage: TensorStorage, groups: int, context_length: int) -> PassLayout:
    """Begins every segment's scratch and works out slots and masks. Raises OutOfPages."""
    device, dtype = storage.whole.device, storage.whole.dtype
    written = [kv.begin(segment.sequence, len(segment), segment.base) for segment in plan.segments]
    runs = [kv.run(segment.sequence) for segment in plan.segments]
    masks = _masks(plan, [run.count for run in runs], groups, dtype, device)
    every = storage.whole.flatten(0, 1).unsqueeze(2)  # [2 * layers, kv heads, 1, slots, head dim]
    layouts, first = [], 0
    for segment, run, mask in zip(plan.segments, runs, masks, strict=True):
        views, slots = None, None
        if run.start is None:
            slots = torch.from_numpy(run.slots).to(device)
        else:
            views = every.narrow(3, run.start, run.count).unbind(0)
        layouts.append(SegmentLayout(first, first + len(segment), views, slots, mask))
        first += len(segment)
    return PassLayout(
        storage, torch.from_numpy(np.concatenate(written)).to(device), tuple(layouts), first, groups, context_length
    )


def depths(segment: Segment) -> NDArray[np.int64]:
    """[n]: steps from the last committed token to each new node, 0 for its children."""
    if _is_chain(segment.parents):
        return np.arange(segment.base, len(segment.parents), dtype=np.int64)
    found: list[int] = []
    for parent in segment.parents.tolist():
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return np.array(found[segment.base :], dtype=np.int64)


def _is_chain(parents: IntArray) -> bool:
    return len(parents) == 1 or bool((parents[1:] == np.arange(len(parents) - 1)).all())


def _sees(segment: Segment) -> NDArray[np.bool_]:
    """[n, b + n]: a new node sees its ancestors and itself."""
    nodes = len(segment.parents)
    if _is_chain(segment.parents):
        return np.tri(len(segment), nodes, segment.base, dtype=np.bool_)
    width = (nodes + 7) // 8
    sets: list[int] = []  # of bits, the quickest sets there are
    for node, parent in enumerate(segment.parents.tolist()):
        sets.append((sets[parent] if parent >= 0 else 0) | 1 << node)
    packed = b"".join(each.to_bytes(width, "little") for each in sets[segment.base :])
    rows = np.frombuffer(packed, np.uint8).reshape(len(segment), width)
    return np.unpackbits(rows, axis=1, count=nodes, bitorder="little").view(np.bool_)


def _masks(
    plan: PassPlan, visible: list[int], groups: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor | None]:
    """[n * G, S] 0 or -inf for each segment, all parts of one buffer; None for a node alone, which sees everything.

    A node sees the committed tokens, its ancestors and itself.
    """
    masked = [len(segment.parents) > 1 for segment in plan.segments]
    shapes = [(len(segment) * groups, count) for segment, count in zip(plan.segments, visible, strict=True)]
    sizes = [rows * count if has else 0 for (rows, count), has in zip(shapes, masked, strict=True)]
    if not any(sizes):
        return [None] * len(shapes)
    host = np.zeros(sum(sizes), dtype=np.float32)
    end = 0
    for segment, (_, count), size in zip(plan.segments, shapes, sizes, strict=True):
        if size:
            hidden = np.where(_sees(segment), np.float32(0), np.float32(-np.inf))
            own = host[end : end + size].reshape(-1, groups, count)
            own[:, :, count - hidden.shape[1] :] = hidden[:, None]
            end += size
    parts = torch.from_numpy(host).to(device, dtype).split(sizes)
    return [part.view(shape) if has else None for part, shape, has in zip(parts, shapes, masked, strict=True)]


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
