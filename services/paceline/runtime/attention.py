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
from paceline.runtime.kv import KVCache, SlotRun, TensorStorage
from paceline.runtime.masks import padded_mask, seen, segment_masks
from paceline.runtime.padded import PaddedBatch, alike
from paceline.runtime.plan import PassPlan

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

    @classmethod
    def of(cls, run: SlotRun, mask: torch.Tensor | None, device: torch.device) -> SegmentLayout:
        """From a sequence's slots."""
        slots = torch.from_numpy(run.slots).to(device) if run.start is None else None
        return cls(run.start or 0, run.count, slots, mask)


@dataclass(frozen=True, slots=True)
class PassLayout:
    """A pass, worked out once for all layers."""

    storage: TensorStorage
    positions: NDArray[np.int64]  # [T without padding]
    write_slots: torch.Tensor  # [T without padding] int64
    batch: PaddedBatch | None  # where all segments are attended at once
    segments: tuple[SegmentLayout, ...]  # empty with a batch
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
        """Attends, segment by segment or all at once, over what has been written.

        The G query heads of a KV head are folded into the query axis: no key or value is repeated.

        Args:
            layer: number of the layer.
            query: [kv heads, T without padding, G, head dim].
            scaling: factor of the scores; None is 1 / sqrt(head dim).

        Returns:
            [T without padding, heads * head dim].
        """
        if self.batch is not None:
            return self.batch.mix(self.storage.layers[layer], query, scaling)
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
    sets = [seen(segment.parents)[segment.base :] for segment in plan.segments]
    counts = [len(segment) for segment in plan.segments]
    nodes = [len(segment.parents) for segment in plan.segments]
    visible = [run.count for run in runs]
    segments: tuple[SegmentLayout, ...] = ()
    batch = None
    if alike(counts, visible, storage.slot_bytes, device):
        batch = PaddedBatch.of(counts, runs, padded_mask(sets, nodes, visible, groups, dtype, device))
    else:
        masks = segment_masks(sets, nodes, visible, groups, dtype, device)
        segments = tuple(SegmentLayout.of(run, mask, device) for run, mask in zip(runs, masks, strict=True))
    positions: list[int] = []
    for segment, own in zip(plan.segments, sets, strict=True):
        before = kv.length(segment.sequence) - 1
        positions += [before + each.bit_count() for each in own]
    return PassLayout(
        storage=storage,
        positions=np.array(positions, dtype=np.int64),
        write_slots=torch.from_numpy(np.concatenate(written)).to(device),
        batch=batch,
        segments=segments,
        rows=[count * groups for count in counts],
        tokens=len(positions),
        groups=groups,
        context_length=context_length,
    )


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
