"""How drafter and target know that a token id means the same to both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """The part of a tokenizer that two services must share."""

    @property
    def fingerprint(self) -> str:
        """See `fingerprint_of`."""
        ...

    def token_table(self) -> list[str]:
        """The token of each id."""
        ...

    def special_ids(self) -> dict[str, int]:
        """Ids with a role, by the role's name."""
        ...


def fingerprint_of(table: Sequence[str], special: Mapping[str, int]) -> str:
    """SHA-256 over an id to token table and special ids, hexadecimal.

    It covers emittable tokens only, so two sizes of a model family whose embeddings are padded differently agree.
    """
    content = json.dumps([list(table), sorted(special.items())], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def first_difference(first: Vocabulary, second: Vocabulary) -> str | None:
    """The first id, or special id, in which two tokenizers differ, in words; None if they are the same."""
    if first.fingerprint == second.fingerprint:
        return None
    ours, theirs = first.token_table(), second.token_table()
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"id {index} is {one!r} in one and {other!r} in the other"
    if len(ours) != len(theirs):
        longer = ours if len(ours) > len(theirs) else theirs
        index = min(len(ours), len(theirs))
        return f"one has {len(ours)} tokens, the other {len(theirs)}; id {index} ({longer[index]!r}) is in one only"
    here, there = first.special_ids(), second.special_ids()
    role = next(role for role in sorted(here.keys() | there.keys()) if here.get(role) != there.get(role))
    return f"the {role} id is {here.get(role)} in one and {there.get(role)} in the other"
