"""Rows of the target, kept by complete context: what is drafted with when that context comes again.

Contexts are known by a 128-bit hash that grows with them. A wrong match would cost acceptance and nothing else.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.proposer import DraftOptions
from paceline.speculation.rows import Row

_DIGEST = 16  # bytes


class ContextHash:
    """The hash of a context."""

    __slots__ = ("_hash",)

    def __init__(self, options: DraftOptions, tokens: NDArray[np.int32]) -> None:
        """A row holds for the processing it was served with, and within a tenant."""
        sampling = options.sampling
        kind = f"{options.tenant}|{sampling.temperature!r}|{sampling.top_k}|{sampling.top_p!r}|"
        self._hash = hashlib.blake2b(kind.encode(), digest_size=_DIGEST)
        self._hash.update(tokens.astype("<i4").tobytes())

    def append(self, tokens: Sequence[int]) -> None:
        """The context has grown."""
        self._hash.update(np.asarray(tokens, dtype="<i4").tobytes())

    def below(self, path: Sequence[int]) -> bytes:
        """Of the context with `path` behind it."""
        grown = self._hash.copy()
        grown.update(np.asarray(path, dtype="<i4").tobytes())
        return grown.digest()


class KnownRows:
    """Rows by context; the least recently used go first."""

    def __init__(self, capacity: int) -> None:
        """`capacity` in rows; 0 keeps none."""
        self._capacity = capacity
        self._rows: OrderedDict[bytes, Row] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, context: ContextHash, row: Row) -> None:
        """Remembers the row at a context."""
        if not self._capacity:
            return
        key = context.below(())
        self._rows[key] = row
        self._rows.move_to_end(key)
        if len(self._rows) > self._capacity:
            self._rows.popitem(last=False)

    def find(self, context: ContextHash, path: Sequence[int]) -> Row | None:
        """The row at the context with `path` behind it, if it is known."""
        if not self._rows:
            return None
        key = context.below(path)
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row
