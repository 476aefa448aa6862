"""Counts of which token followed which recent tokens, for several lengths of context at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

ORDERS = (1, 2, 3, 4, 6, 8)  # lengths of context, in tokens
LONGEST = ORDERS[-1]
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Followers = dict[int, float]


def tenant_start(tenant: str) -> int:
    """What the keys of a tenant grow from, so that no two tenants share one."""
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=8).digest(), "little") if tenant else 0


def context_keys(tail: Sequence[int], start: int = 0) -> list[int]:
    """A 64-bit key for each order that fits into `tail`, shortest first, grown from a tenant's `start`."""
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
        self.tokens = 0  # tokens learned

    def learn(self, keys: Sequence[int], token: int) -> None:
        """Notes that `token` followed the contexts of `keys`. Newer sightings weigh a little more than older ones."""
        self.tokens += 1
        for key in keys:
            known = self._followers.get(key)
            if known is None:
                self._followers[key] = token
            elif isinstance(known, dict):
                known[token] = 0.9 * known.get(token, 0.0) + 1.0
            elif known == token:
                self._followers[key] = {token: 1.9}
            else:
                self._followers[key] = {known: 0.9, token: 1.0}

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


class NGramStore:
    """N-grams of text served by this replica, in bounded memory: two generations, the older dropped as a whole."""

    def __init__(self, capacity_tokens: int) -> None:
        """Holds the latest `capacity_tokens` / 2 to `capacity_tokens` tokens; 0 holds nothing."""
        self.capacity = capacity_tokens
        self._young, self._old = NGrams(), NGrams()

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return self._young.tokens + self._old.tokens

    def learn(self, context: Sequence[int], tokens: Sequence[int], start: int = 0) -> None:
        """Learns `tokens`, which followed `context`, under keys grown from a tenant's `start`."""
        if self.capacity == 0:
            return
        text = [*context[-LONGEST:], *tokens]
        for index in range(len(text) - len(tokens), len(text)):
            if self._young.tokens >= max(1, self.capacity // 2):
                self._young, self._old = NGrams(), self._young
            keys = context_keys(text[max(0, index - LONGEST) : index], start)
            self._young.learn(keys, text[index])

    def generations(self) -> list[NGrams]:
        """The generations that hold anything, for looking up, the younger first."""
        return [each for each in (self._young, self._old) if each.tokens]
