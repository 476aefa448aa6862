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
from transformers import AttentionInterface

from paceline.errors import ModelUnsupported
from paceline.runtime.kv import KVCache, TensorStorage
from paceline.runtime.plan import PassPlan, Segment

NAME = "paceline_packed"
# Keywords by which models of transformers change what attention computes: capped scores, sinks, biases, sparse keys.
CHANGING = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices", "head_mask")


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """One segment of a pass, worked out once for all layers."""

    first: int  # its nodes are [first, last) of the pass
    last: int
    start: int | None  # first slot if its positions are one interval of slots
    slots: torch.Tensor  # [S] int64, used where they are not
    visible: int  # S
    mask: torch.Tensor | None  # [G * n, S] 0 or -inf; None if a node sees every position


@dataclass(frozen=True, slots=True)
class PassLayout:
    """A pass, worked out once for all layers."""

    storage: TensorStorage
    write_slots: torch.Tensor  # [T without padding] int64
    segments: tuple[SegmentLayout, ...]
    tokens: int  # T without padding
    context_length: int  # most tokens of a sequence


def lay_out(plan: PassPlan, kv: KVCache, storage: TensorStorage, groups: int, context_length: int) -> PassLayout:
    """Begins every segment's scratch and works out slots and masks. Raises OutOfPages."""
    device, dtype = storage.keys[0].device, storage.keys[0].dtype
    written = [kv.begin(segment.sequence, len(segment), segment.base) for segment in plan.segments]
    layouts, first = [], 0
    for segment in plan.segments:
        run = kv.run(segment.sequence)
        mask = _mask(segment, run.count, groups, dtype, device)
        slots = torch.from_numpy(run.slots).to(device)
        layouts.append(SegmentLayout(first, first + len(segment), run.start, slots, run.count, mask))
        first += len(segment)
    return PassLayout(
        storage, torch.from_numpy(np.concatenate(written)).to(device), tuple(layouts), first, context_length
    )


def depths(segment: Segment) -> np.ndarray:
    """[n] int64: steps from the last committed token to each new node, 0 for its children."""
    if _is_chain(segment.parents):
        return np.arange(segment.base, len(segment.parents), dtype=np.int64)
    found = np.zeros(len(segment.parents), dtype=np.int64)
    for node, parent in enumerate(segment.parents.tolist()):
        if parent >= 0:
            found[node] = found[parent] + 1
    return found[segment.base :]


def _is_chain(parents: np.ndarray) -> bool:
    return np.array_equal(parents, np.arange(-1, len(parents) - 1))


def _mask(segment: Segment, visible: int, groups: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """A node sees the committed tokens, its ancestors and itself."""
    nodes = len(segment.parents)
    if nodes == 1:
        return None
    parents = segment.parents
    if _is_chain(parents):
        sees = np.tri(nodes, dtype=bool)
    else:
        sees = np.eye(nodes, dtype=bool)
        for node, parent in enumerate(parents.tolist()):
            if parent >= 0:
                sees[node] |= sees[parent]
    mask = torch.zeros((len(segment), visible), dtype=dtype)
    mask[:, visible - nodes :].masked_fill_(torch.from_numpy(~sees[segment.base :]), -torch.inf)
    return mask.repeat(groups, 1).to(device)


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
    """Writes the pass's keys and values and attends, segment by segment.

    The G query heads of a KV head are folded into the query axis: no key or value is repeated.

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
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    keys, values = paceline_layout.storage.keys[layer], paceline_layout.storage.values[layer]
    tokens = paceline_layout.tokens
    keys.index_copy_(1, paceline_layout.write_slots, key[0, :, :tokens])
    values.index_copy_(1, paceline_layout.write_slots, value[0, :, :tokens])
    _, heads, padded, head_dim = query.shape
    kv_heads = key.shape[1]
    output = (
        query.new_zeros((1, padded, heads, head_dim)) if padded > tokens else torch.empty_like(query).transpose(1, 2)
    )
    for segment in paceline_layout.segments:
        if segment.start is not None:
            end = segment.start + segment.visible
            own_keys, own_values = keys[:, segment.start : end], values[:, segment.start : end]
        else:
            own_keys, own_values = keys.index_select(1, segment.slots), values.index_select(1, segment.slots)
        count = segment.last - segment.first
        folded = query[0, :, segment.first : segment.last].reshape(1, kv_heads, -1, head_dim)
        mixed = functional.scaled_dot_product_attention(
            folded, own_keys.unsqueeze(0), own_values.unsqueeze(0), attn_mask=segment.mask, scale=scaling
        )
        output[0, segment.first : segment.last] = mixed.view(heads, count, head_dim).transpose(0, 1)
    return output, None


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
