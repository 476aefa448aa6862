"""Paged, reference-counted KV slots.

Who owns what, as half-open intervals of a sequence's positions. Position i lies in slot
`pages[i // page_size] * page_size + i % page_size`.

| interval | holds | written by | freed by |
| --- | --- | --- | --- |
| [0, length) | committed tokens | the pass that ran them, then `keep`; `copy_prefix` | `truncate`, `release` |
| [length, length + scratch) | nodes of the last pass, in their order | the running pass | `keep`, the next `begin` |
| [length + scratch, pages * page_size) | room reserved for the sequence | nobody | `release` |

A page with more than one owner is never written: `begin` copies it first. Pages are handed out in contiguous runs where
one is free, so that prefix and scratch are usually one interval and attention sees them without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

MOVED = 1024  # slots of one layer copied at a time


class OutOfPages(Exception):
    """No page is free; the text says how many were wanted and how many there are."""


class KVStorage(Protocol):
    """Where keys and values lie. A slot is one token's place in every layer."""

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copies slots, as if all sources were read before any target is written."""
        ...


@dataclass(slots=True)
class _Sequence:
    tenant: str  # part of every key under which pages may be shared
    pages: list[int]
    length: int = 0
    scratch: int = 0
    run: bool = True  # whether the pages are consecutive


@dataclass(frozen=True, slots=True)
class SlotRun:
    """Slots of a sequence's positions [0, count): `start` where they are one interval, else None and `slots`."""

    start: int | None
    slots: NDArray[np.int64]  # [count] int64; empty where `start` is given
    count: int


class KVCache:
    """Pages of `page_size` slots and the sequences that own them. Used by one thread at a time."""

    def __init__(self, pages: int, page_size: int = 16, storage: KVStorage | None = None) -> None:
        """`storage` None keeps the books only, for models without keys and values."""
        self.page_size = page_size
        self.pages_total = pages
        self._storage = storage
        self._owners = np.zeros(pages, dtype=np.int32)  # sequences that hold each page
        self._sequences: dict[int, _Sequence] = {}
        self._next = 1

    @property
    def pages_used(self) -> int:
        """Pages with an owner, reserved ones included."""
        return int(np.count_nonzero(self._owners))

    @property
    def sequences(self) -> int:
        """Open sequences."""
        return len(self._sequences)

    def open(self, tenant: str = "", reserve_tokens: int = 0) -> int:
        """A new, empty sequence with room for `reserve_tokens`. Its id is never used again. Raises OutOfPages."""
        pages = self._allocate(self._pages_for(reserve_tokens))
        return self._add(_Sequence(tenant, pages, run=_consecutive(pages)))

    def fits(self, tokens: int) -> bool:
        """Whether `open(reserve_tokens=tokens)` would succeed now."""
        return self._pages_for(tokens) <= self.pages_total - self.pages_used

    def length(self, sequence: int) -> int:
        """Committed tokens."""
        return self._sequences[sequence].length

    def begin(self, sequence: int, nodes: int, base: int = 0) -> NDArray[np.int64]:
        """Scratch slots for `nodes` tokens of a pass, behind the first `base` nodes of the scratch as it is.

        Returns:
            [nodes] int64.

        Raises OutOfPages, leaving the sequence as it was, and ValueError if the scratch has fewer nodes than `base`.
        """
        held = self._sequences[sequence]
        if base > held.scratch:
            raise ValueError(f"base {base}, allowed: 0 to {held.scratch} nodes of earlier passes")
        end = held.length + base + nodes
        written = range(held.length // self.page_size, self._pages_for(end))
        shared = [index for index in written if index < len(held.pages) and self._owners[held.pages[index]] > 1]
        self._check_free(len(shared) + max(0, self._pages_for(end) - len(held.pages)))
        self.reserve(sequence, end)
        for index in shared:
            self._make_own(held, index)
        held.scratch = base + nodes
        return self._slots(held, held.length + base, end)

    def reserve(self, sequence: int, tokens: int) -> None:
        """Makes sure of room for `tokens` in all. Raises OutOfPages, leaving the sequence as it was."""
        held = self._sequences[sequence]
        missing = self._pages_for(tokens) - len(held.pages)
        if missing > 0:
            held.pages += self._allocate(missing, after=held.pages[-1] if held.pages else None)
            held.run = _consecutive(held.pages)

    def run(self, sequence: int) -> SlotRun:
        """Slots of the committed tokens and the scratch, in order of position."""
        held = self._sequences[sequence]
        count = held.length + held.scratch
        if held.run:
            return SlotRun(held.pages[0] * self.page_size if held.pages else 0, np.zeros(0, dtype=np.int64), count)
        return SlotRun(None, self._slots(held, 0, count), count)

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        """Commits nodes of the last pass, in order; every other node of it is dropped.

        Args:
            sequence: the sequence.
            path: indices of nodes in the pass's segment, ascending.

        Raises ValueError if a node is not in the scratch or out of order.
        """
        held = self._sequences[sequence]
        nodes = np.asarray(path, dtype=np.int64)
        if len(nodes) and (nodes[0] < 0 or nodes[-1] >= held.scratch or (np.diff(nodes) <= 0).any()):
            raise ValueError(f"path {list(path)} must ascend within the {held.scratch} nodes of the last pass")
        moved = np.flatnonzero(nodes != np.arange(len(nodes)))
        if len(moved) and self._storage is not None:
            slots = self._slots(held, held.length, held.length + held.scratch)
            self._storage.move(slots[nodes[moved]], slots[moved])
        held.length += len(nodes)
        held.scratch = 0

    def drop_scratch(self, sequence: int) -> None:
        """Forgets the last pass, for example after it failed. An unknown sequence has none."""
        if sequence in self._sequences:
            self._sequences[sequence].scratch = 0

    def truncate(self, sequence: int, length: int) -> None:
        """Forgets committed tokens from `length` on. Raises ValueError if there are fewer."""
        held = self._sequences[sequence]
        if not 0 <= length <= held.length:
            raise ValueError(f"length {length}, allowed: 0 to {held.length}")
        held.length, held.scratch = length, 0

    def fork(self, sequence: int, reserve_tokens: int = 0) -> int:
        """A sequence with the same committed tokens: full pages are shared, the last partial one is copied.

        Raises OutOfPages.
        """
        source = self._sequences[sequence]
        full = source.length // self.page_size
        shared = source.pages[:full]
        own = self._allocate(self._pages_for(max(reserve_tokens, source.length)) - full)
        self._owners[shared] += 1
        copy = _Sequence(source.tenant, shared + own, length=source.length, run=_consecutive(shared + own))
        if rest := source.length - full * self.page_size:
            self._copy_page(source.pages[full], own[0], rest)
        return self._add(copy)

    def copy_prefix(self, source: int, target: int, tokens: int) -> None:
        """Commits the first `tokens` of `source` to `target`, which is empty, as if a pass had computed them there.

        Slots are copied, and no page is shared: `target` keeps the run of pages it has reserved.
        Raises ValueError if `target` is not empty or `source` has fewer tokens, OutOfPages, leaving both as they were.
        """
        given = self._sequences[source]
        if self.length(target):
            raise ValueError(f"sequence {target} has {self.length(target)} tokens, allowed: none")
        if not 0 <= tokens <= given.length:
            raise ValueError(f"tokens {tokens}, allowed: 0 to {given.length}")
        slots = self.begin(target, tokens)
        if self._storage is not None and tokens:
            self._storage.move(self._slots(given, 0, tokens), slots)
        self.keep(target, range(tokens))

    def release(self, sequence: int) -> None:
        """Ends the sequence and gives its pages back."""
        for page in self._sequences.pop(sequence).pages:
            self._owners[page] -= 1

    def check_integrity(self) -> None:
        """Raises AssertionError unless every page's owners, and every sequence's interval, add up."""
        owners = np.zeros_like(self._owners)
        for name, held in self._sequences.items():
            assert len(set(held.pages)) == len(held.pages), f"sequence {name} holds a page twice"
            assert 0 <= held.length, f"sequence {name} has length {held.length}"
            assert held.length + held.scratch <= len(held.pages) * self.page_size, f"sequence {name} exceeds its pages"
            assert held.run == _consecutive(held.pages), f"sequence {name} is wrong about its run"
            owners[held.pages] += 1
            writable = range(held.length // self.page_size, self._pages_for(held.length + held.scratch))
            if held.scratch:
                assert all(self._owners[held.pages[index]] == 1 for index in writable), (
                    f"sequence {name} shares scratch"
                )
        assert np.array_equal(owners, self._owners), "owners of pages do not add up"

    def _add(self, held: _Sequence) -> int:
        name, self._next = self._next, self._next + 1
        self._sequences[name] = held
        return name

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _slots(self, held: _Sequence, start: int, end: int) -> NDArray[np.int64]:
        positions = np.arange(start, end)
        if held.run:
            return positions + (held.pages[0] * self.page_size if held.pages else 0)
        pages = np.asarray(held.pages, dtype=np.int64)
        slots: NDArray[np.int64] = pages[positions // self.page_size] * self.page_size + positions % self.page_size
        return slots

    def _allocate(self, count: int, after: int | None = None) -> list[int]:
        """`count` free pages: right behind `after`, else the smallest run that holds them, else the lowest ones."""
        if count <= 0:
            return []
        self._check_free(count)
        free = self._owners == 0
        start = None if after is None else after + 1
        if start is None or start + count > self.pages_total or not free[start : start + count].all():
            start = _smallest_run(free, count)
        chosen = np.flatnonzero(free)[:count] if start is None else np.arange(start, start + count)
        self._owners[chosen] = 1
        return [int(page) for page in chosen]

    def _check_free(self, wanted: int) -> None:
        free = self.pages_total - self.pages_used
        if wanted > free:
            raise OutOfPages(f"{wanted} KV pages wanted, {free} of {self.pages_total} are free")

    def _make_own(self, held: _Sequence, index: int) -> None:
        page = held.pages[index]
        own = self._allocate(1)[0]
        self._copy_page(page, own, max(0, min(self.page_size, held.length - index * self.page_size)))
        self._owners[page] -= 1
        held.pages[index] = own
        held.run = _consecutive(held.pages)

    def _copy_page(self, source: int, target: int, tokens: int) -> None:
        if self._storage is not None and tokens:
            within = np.arange(tokens)
            self._storage.move(source * self.page_size + within, target * self.page_size + within)


@dataclass(frozen=True, slots=True)
class TensorStorage:
    """Keys and values of every layer in one tensor, so that a run of slots is a view."""

    whole: torch.Tensor = field(repr=False)  # [layers, 2, kv heads, slots, head dim], keys before values
    layers: tuple[torch.Tensor, ...] = field(repr=False)  # [2 * kv heads, slots, head dim] each, views of it
    heads: tuple[tuple[torch.Tensor, torch.Tensor], ...] = field(repr=False)  # two [kv heads, 1, slots, head dim] each

    @classmethod
    def allocate(
        cls, layers: int, kv_heads: int, head_dim: int, slots: int, dtype: torch.dtype, device: torch.device
    ) -> TensorStorage:
        """Storage for `slots` tokens. Memory: 2 * layers * kv_heads * head_dim * slots * bytes of `dtype`."""
        whole = torch.zeros((layers, 2, kv_heads, slots, head_dim), dtype=dtype, device=device)
        heads = [(keys.unsqueeze(1), values.unsqueeze(1)) for keys, values in whole.unbind(0)]
        return cls(whole, whole.flatten(1, 2).unbind(0), tuple(heads))

    @property
    def slot_bytes(self) -> int:
        """Of one layer's keys and values of one token."""
        planes, _, head_dim = self.layers[0].shape
        return planes * head_dim * self.whole.element_size()

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copies slots in every layer; `index_select` reads all sources before any target is written.

        Some layers at a time, so that what is read stays small beside the storage.
        """
        source = torch.from_numpy(sources).to(self.whole.device)
        target = torch.from_numpy(targets).to(self.whole.device)
        for some in self.whole.split(max(1, MOVED // max(1, len(sources)))):
            planes = some.flatten(0, 2)  # [some layers * 2 * kv heads, slots, head dim]
            planes.index_copy_(1, target, planes.index_select(1, source))


def _consecutive(pages: list[int]) -> bool:
    return not pages or (pages[-1] - pages[0] == len(pages) - 1 and bool((np.diff(pages) == 1).all()))


def _smallest_run(free: NDArray[np.bool_], count: int) -> int | None:
    """Start of the smallest run of at least `count` free pages; None if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], free.astype(np.int8), [0]))))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    fitting = np.flatnonzero(lengths >= count)
    return int(starts[fitting[np.argmin(lengths[fitting])]]) if len(fitting) else None
