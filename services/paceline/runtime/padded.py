"""Attention over sessions of like shape as one padded batch, where that beats a call for each.

Legend: T nodes of the pass, N sessions, n most nodes of one, S most positions one sees, K KV heads, G query heads per
KV head, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray

from paceline.runtime.kv import SlotRun

# Bytes of keys and values of one layer that are gladly copied to save one call of attention. On CPU, where a call with
# its views costs as much as copying about 170 KB, a batch takes 0.4 of the time of calls at a quarter of the limit, 0.7
# at half of it and 1.0 a little above it. Elsewhere a call costs as much and a copy a hundredth or less.
COPIED = {"cpu": 2**17}
COPIED_ELSEWHERE = 2**23
WASTE = 2  # most that padding may multiply nodes, or positions


def alike(counts: Sequence[int], visible: Sequence[int], slot_bytes: int, device: torch.device) -> bool:
    """Whether segments are attended as one batch.

    Args:
        counts: new nodes of each.
        visible: positions each sees.
        slot_bytes: of one layer's keys and values of one token.
        device: where they are.
    """
    many = len(counts)
    return (
        many > 1
        and max(visible) * slot_bytes <= COPIED.get(device.type, COPIED_ELSEWHERE)
        and many * max(counts) <= WASTE * sum(counts)
        and many * max(visible) <= WASTE * sum(visible)
    )


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """The sessions of a pass as one batch. Padding repeats what is a session's own, so that none meets another's."""

    slots: torch.Tensor  # [N * S] int64
    rows: torch.Tensor  # [N * n] int64, the pass's node that each row of the batch holds
    places: torch.Tensor  # [T] int64, the row of each node
    mask: torch.Tensor  # [N, 1, n * G, S] 0 or -inf

    @classmethod
    def of(cls, counts: list[int], runs: list[SlotRun], mask: torch.Tensor) -> PaddedBatch:
        """From each segment's new nodes and slots."""
        most = np.arange(max(run.count for run in runs))
        slots = np.stack([_slots(run, np.minimum(most, run.count - 1)) for run in runs])
        own = np.array(counts)[:, None]
        row = np.arange(max(counts))
        rows = np.cumsum(own)[:, None] - own + np.minimum(row, own - 1)  # [N, n]
        places = np.flatnonzero(row < own)

        def there(numbers: NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(numbers.ravel()).to(mask.device)

        return cls(there(slots), there(rows), there(places), mask)

    def mix(self, stored: torch.Tensor, query: torch.Tensor, scaling: float | None) -> torch.Tensor:
        """Attends over one layer.

        Args:
            stored: [2 * K, slots, D], the layer's keys before its values.
            query: [K, T, G, D].
            scaling: factor of the scores; None is 1 / sqrt(D).

        Returns:
            [T, K * G * D].
        """
        kv_heads, tokens = query.shape[:2]
        sessions, _, rows, positions = self.mask.shape
        pairs = stored.index_select(1, self.slots).view(2, kv_heads, sessions, positions, -1).transpose(1, 2)
        batch = query.index_select(1, self.rows).view(kv_heads, sessions, rows, -1).transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(batch, pairs[0], pairs[1], attn_mask=self.mask, scale=scaling)
        by_head = mixed.transpose(0, 1).reshape(kv_heads, len(self.rows), -1)  # [K, N * n, G * D]
        return by_head.index_select(1, self.places).transpose(0, 1).reshape(tokens, -1)


def _slots(run: SlotRun, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return run.slots[positions] if run.start is None else run.start + positions
