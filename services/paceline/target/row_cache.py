"""Rows kept by the complete context and the processing they are served with, nothing less (THEORY 5)."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.nucleus import Nucleus
from paceline.speculation.sampling import SamplingParams
from paceline.target.request import SessionRequest
from paceline.target.served import HeldRow

_Key = tuple[bytes, float, int, float, Nucleus | None]


class RowCache:
    """First rows of replies: an equal prompt draws its first token before its own pass. Least recently used go first.

    The key holds the context itself, so that no two contexts can be taken for each other. Seeds are no part of it: a
    row is a distribution.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """`capacity_bytes` bounds rows and keys together; 0 keeps none."""
        self._capacity, self._size = capacity_bytes, 0
        self._rows: OrderedDict[_Key, HeldRow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, request: SessionRequest, context: NDArray[np.int32]) -> HeldRow | None:
        """The row after `context` as `request` is served, if it is known."""
        if not self._capacity:
            return None
        key = _key(request.sampling, request.nucleus, context)
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def keep(self, request: SessionRequest, context: NDArray[np.int32], row: HeldRow) -> None:
        """Remembers the row after `context`."""
        key = _key(request.sampling, request.nucleus, context)
        size = _bytes(key, row)
        if size > self._capacity or key in self._rows:
            return
        self._rows[key] = row
        self._size += size
        while self._size > self._capacity:
            oldest, dropped = self._rows.popitem(last=False)
            self._size -= _bytes(oldest, dropped)


def _key(sampling: SamplingParams, nucleus: Nucleus | None, context: NDArray[np.int32]) -> _Key:
    return (context.tobytes(), sampling.temperature, sampling.top_k, sampling.top_p, nucleus)


def _bytes(key: _Key, row: HeldRow) -> int:
    rows = [row.row, *([row.nucleus] if row.nucleus is not None else [])]
    return len(key[0]) + sum(each.token_ids.nbytes + each.probs.nbytes for each in rows)
