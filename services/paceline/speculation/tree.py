"""Draft trees in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ROOT = -1  # parent of the first level: the context's last token, which is not a node

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]


class TreeFault(ValueError):
    """A tree breaks the rules of the wire; the text names the node and the rule."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A draft tree. Parents come before children, so any leading part is a tree too.

    N nodes; node i's parent is an earlier node or ROOT.
    """

    tokens: IntArray  # [N] int32
    parents: IntArray  # [N] int32
    log_probs: FloatArray | None = None  # [N] float32, log of the drafter's probability given the parent
    depths: IntArray = field(init=False)  # [N] int32, 1 for children of the root

    def __post_init__(self) -> None:
        depths = np.zeros(len(self.tokens), dtype=np.int32)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = 1 if parent < 0 else depths[parent] + 1
        object.__setattr__(self, "depths", depths)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def build(
        cls, tokens: Sequence[int], parents: Sequence[int], log_probs: Sequence[float] | None = None
    ) -> DraftTree:
        """From Python sequences of equal length, which are trusted; see `checked` for the wire."""
        return cls(
            np.asarray(tokens, dtype=np.int32),
            np.asarray(parents, dtype=np.int32),
            None if log_probs is None else np.asarray(log_probs, dtype=np.float32),
        )

    @classmethod
    def empty(cls) -> DraftTree:
        """The tree without nodes."""
        return cls.build((), ())

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """One path."""
        return cls.build(tokens, range(-1, len(tokens) - 1))

    @classmethod
    def checked(
        cls,
        tokens: IntArray,
        parents: IntArray,
        log_probs: FloatArray | None,
        *,
        vocab_size: int,
        max_nodes: int,
        max_depth: int,
    ) -> DraftTree:
        """From arrays that came over the wire.

        Raises TreeFault unless lengths agree, ids are in 0 .. vocab_size - 1, parents precede children (hence no
        cycles), siblings differ, log-probabilities are finite and at most 0 (to rounding), and the limits hold.
        """
        count = len(tokens)
        if len(parents) != count or (log_probs is not None and len(log_probs) != count):
            raise TreeFault(f"arrays differ in length: {count} tokens, {len(parents)} parents")
        if count > max_nodes:
            raise TreeFault(f"{count} nodes, allowed: at most {max_nodes}")
        if count and not (0 <= int(tokens.min()) and int(tokens.max()) < vocab_size):
            node = int(np.argmax((tokens < 0) | (tokens >= vocab_size)))
            raise TreeFault(f"node {node}: token {int(tokens[node])}, allowed: 0 to {vocab_size - 1}")
        seen: set[tuple[int, int]] = set()
        for node, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
            if not ROOT <= parent < node:
                raise TreeFault(f"node {node}: parent {parent}, allowed: {ROOT} to {node - 1}")
            if (parent, token) in seen:
                raise TreeFault(f"node {node}: token {token} occurs twice below parent {parent}")
            seen.add((parent, token))
        if log_probs is not None and count and not (np.isfinite(log_probs).all() and float(log_probs.max()) <= 1e-3):
            raise TreeFault("log-probabilities must be finite and at most 0")
        tree = cls(tokens, parents, log_probs)
        if count and int(tree.depths.max()) > max_depth:
            raise TreeFault(f"depth {int(tree.depths.max())}, allowed: at most {max_depth}")
        return tree

    def children(self, node: int) -> list[int]:
        """Children of `node` (ROOT for the first level), in order."""
        return np.flatnonzero(self.parents == node).tolist()

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`, or None."""
        found = np.flatnonzero((self.parents == node) & (self.tokens == token))
        return int(found[0]) if len(found) else None

    def path(self, node: int) -> list[int]:
        """Nodes from the first level down to `node`."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def path_tokens(self, node: int) -> list[int]:
        """Tokens from the first level down to `node`."""
        return [int(self.tokens[each]) for each in self.path(node)]

    def first(self, count: int) -> DraftTree:
        """The leading `count` nodes."""
        if count >= len(self):
            return self
        log_probs = None if self.log_probs is None else self.log_probs[:count]
        return DraftTree(self.tokens[:count], self.parents[:count], log_probs)

    def keep(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of `nodes`, ascending and closed under parents."""
        index = {ROOT: ROOT} | {node: position for position, node in enumerate(nodes)}
        picked = np.asarray(nodes, dtype=np.int64)
        log_probs = None if self.log_probs is None else self.log_probs[picked]
        parents = np.asarray([index[int(self.parents[node])] for node in nodes], dtype=np.int32)
        return DraftTree(self.tokens[picked], parents, log_probs)

    def below(self, tokens: Sequence[int]) -> DraftTree | None:
        """The part below the path `tokens`, re-rooted there; None if the path leaves the tree."""
        top = ROOT
        for token in tokens:
            child = self.child(top, token)
            if child is None:
                return None
            top = child
        if top == ROOT:
            return self
        index = {top: ROOT}
        kept: list[int] = []
        for node, parent in enumerate(self.parents.tolist()):
            if parent in index:
                index[node] = len(kept)
                kept.append(node)
        picked = np.asarray(kept, dtype=np.int64)
        log_probs = None if self.log_probs is None else self.log_probs[picked]
        parents = np.asarray([index[int(self.parents[node])] for node in kept], dtype=np.int32)
        return DraftTree(self.tokens[picked], parents, log_probs)
