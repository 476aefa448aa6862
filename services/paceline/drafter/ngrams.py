"""Counts of which token followed which recent tokens, for several lengths of context at once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

ORDERS = (1, 2, 3, 4, 6, 8)  # lengths of context, in tokens
LONGEST = ORDERS[-1]
MAX_FOLLOWERS = 32  # of a context; bounds what a lookup costs, however much is learned
_MULTIPLIER = 0x9E3779B97F4A7C15
# Keys stay below 2**60, where a Python integer takes 32 bytes; above, it takes 48.
_MASK = (1 << 60) - 1
# Bytes of the objects that tables point to, as the allocator rounds them: a key, a token, a weight.
_KEY_BYTES, _TOKEN_BYTES, _WEIGHT_BYTES = 32, 32, 32
_STEP_BYTES = 8192  # a token adds at most under all its contexts, the outer table apart

Followers = dict[int, float]


def tenant_start(tenant: str) -> int:
    """What the keys of a tenant grow from, so that no two tenants share one."""
    if not tenant:
        return 0
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=8).digest(), "little") & _MASK


def context_keys(tail: Sequence[int], start: int = 0) -> list[int]:
    """A 60-bit key for each order that fits into `tail`, shortest first, grown from a tenant's `start`."""
    keys = []
    key = start
    for length, token in enumerate(reversed(tail), start=1):
        key = ((key ^ (token + 1)) * _MULTIPLIER + length) & _MASK
        if length in _ORDER_SET:
            keys.append(key)
        if length == LONGEST:
            break
    return keys


_ORDER_SET = frozenset(ORDERS)


class NGrams:
    """Followers of contexts. A context with one follower, seen once, costs one dictionary entry and no more."""

    def __init__(self) -> None:
        self._followers: dict[int, int | Followers] = {}
        self._objects = 0  # bytes of the inner dictionaries, of their weights, and of tokens
        self._table = self._grew_at = 0  # bytes of the outer dictionary, and its length when it took that size
        self.tokens = 0  # tokens learned

    @property
    def bytes(self) -> int:
        """Memory of what is held: estimated from the sizes of its objects, within a fifth of what Python allocates."""
        return self._table + self._objects + len(self._followers) * _KEY_BYTES

    @property
    def bytes_ahead(self) -> int:
        """What `bytes` may come to with the next token: a dictionary whose length has doubled may double."""
        doubles = len(self._followers) + len(ORDERS) > 2 * (self._grew_at - len(ORDERS)) - 2
        return self.bytes + _STEP_BYTES + (self._table if doubles else 0)

    def learn(self, keys: Sequence[int], token: int) -> None:
        """Notes that `token` followed the contexts of `keys`.

        A follower's sightings count less and less, ten in all at most. Of contexts with many followers the rare and the
        old ones are dropped.
        """
        self.tokens += 1
        followers, held = self._followers, False  # held: `token` itself, once for all keys
        for key in keys:
            known = followers.get(key)
            if known is None:
                followers[key] = token
                held = True
            elif not isinstance(known, dict):
                branch = {token: 1.9} if known == token else {known: 0.9, token: 1.0}
                followers[key] = branch
                held = held or len(branch) == 2
                self._objects += sys.getsizeof(branch) + len(branch) * _WEIGHT_BYTES
            elif token in known:
                known[token] = 0.9 * known[token] + 1.0
            else:
                before = sys.getsizeof(known)
                known[token] = 1.0
                held = True
                self._objects += sys.getsizeof(known) - before + _WEIGHT_BYTES
                if len(known) > MAX_FOLLOWERS:
                    self._thin(key, known)
        if held:
            self._objects += _TOKEN_BYTES
        table = sys.getsizeof(followers)
        if table != self._table:
            self._table, self._grew_at = table, len(followers)  # at most six entries late

    def _thin(self, key: int, known: Followers) -> None:
        """Keeps the heavier half of a context's followers, at half their weight: what is rare or long ago goes."""
        kept = sorted(known.items(), key=lambda item: item[1])[-(MAX_FOLLOWERS // 2) :]  # of equals the later
        thinned = {token: 0.5 * weight for token, weight in kept}
        self._followers[key] = thinned
        self._objects -= sys.getsizeof(known) + len(known) * _WEIGHT_BYTES
        self._objects += sys.getsizeof(thinned) + len(thinned) * _WEIGHT_BYTES

    def add_followers(self, key: int, weight: float, into: dict[int, float]) -> None:
        """Adds `weight` times each sighting after a context to `into`, by token."""
        known = self._followers.get(key)
        if known is None:
            return
        if isinstance(known, int):
            into[known] = into.get(known, 0.0) + weight
            return
        for token, count in known.items():
            into[token] = into.get(token, 0.0) + weight * count

    def followers(self, key: int) -> Followers | None:
        """Weight of each token seen after a context; None if it was never seen."""
        found: Followers = {}
        self.add_followers(key, 1.0, found)
        return found or None
