"""Which nodes of a pass see which: ancestor masks, worked out on the host over all segments at once.

Legend: T nodes of the pass, n nodes of a segment, b nodes of its earlier passes, S positions it sees, G query heads per
KV head, N segments.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.speculation.tree import IntArray


def seen(parents: IntArray) -> list[int]:
    """The nodes that each node sees below the committed tokens, its ancestors and itself, as a set of bits."""
    sets: list[int] = []
    for node, parent in enumerate(parents.tolist()):
        sets.append((sets[parent] if parent >= 0 else 0) | 1 << node)
    return sets


def tree_parts(sets: list[list[int]], most: int) -> NDArray[np.float32]:
    """[T, 1, most]: 0 or -inf for each node of the pass over the first `most` nodes of its segment.

    Args:
        sets: for each segment, what its new nodes see.
        most: at least the nodes of any segment.
    """
    width = (most + 7) // 8
    packed = b"".join(each.to_bytes(width, "little") for own in sets for each in own)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(-1, width), axis=1, count=most, bitorder="little")
    return np.where(bits, np.float32(0), np.float32(-np.inf))[:, None]


def segment_masks(
    sets: list[list[int]],
    nodes: list[int],
    visible: list[int],
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor | None]:
    """[n * G, S] 0 or -inf for each segment, all parts of one buffer; None for a node alone, which sees everything.

    Args:
        sets: for each segment, what its new nodes see.
        nodes: b + n of each segment.
        visible: S of each segment.
        groups: G.
        dtype: of the masks.
        device: where they go.
    """
    most = max(nodes)
    if most == 1:
        return [None] * len(nodes)
    trees = tree_parts(sets, most)
    counts = [len(own) for own in sets]
    sizes = [count * groups * sees if own > 1 else 0 for count, sees, own in zip(counts, visible, nodes, strict=True)]
    host = np.zeros(sum(sizes), dtype=np.float32)
    first, end = 0, 0
    for count, sees, own, size in zip(counts, visible, nodes, sizes, strict=True):
        if size:
            tree = trees[first : first + count, :, :own]
            host[end : end + size].reshape(count, groups, sees)[:, :, sees - own :] = tree
        first, end = first + count, end + size
    parts = torch.from_numpy(host).to(device, dtype).split(sizes)
    return [part.view(-1, sees) if size else None for part, sees, size in zip(parts, visible, sizes, strict=True)]


def padded_mask(
    sets: list[list[int]],
    nodes: list[int],
    visible: list[int],
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """[N, 1, n * G, S] 0 or -inf with the largest n and S of all segments; arguments as of `segment_masks`."""
    counts = [len(own) for own in sets]
    sees = np.arange(max(visible)) < np.array(visible)[:, None]  # [N, S]
    host = np.where(sees, np.float32(0), np.float32(-np.inf))[:, None, None].repeat(max(counts), 1).repeat(groups, 2)
    if max(nodes) > 1:
        trees = tree_parts(sets, max(nodes))
        first = 0
        for number, (count, end, own) in enumerate(zip(counts, visible, nodes, strict=True)):
            host[number, :count, :, end - own : end] = trees[first : first + count, :, :own]
            first += count
    return torch.from_numpy(host).to(device, dtype).flatten(1, 2).unsqueeze(1)
