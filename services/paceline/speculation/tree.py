"""Draft trees in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.proposal_row import ProposalRow

ROOT = -1  # parent of the first level: the context's last token, which is not a node

Rows = tuple[ProposalRow | None, ...]
IntArray = NDArray[np.int32]
FloatArray = NDArray[np.floating[Any]]


class TreeFault(ValueError):
    """A tree breaks the rules of the wire; the text names the node and the rule."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A draft tree. Parents come before children, so any leading part is a tree too.

    N nodes; node i's parent is an earlier node or ROOT.
    """

    tokens: IntArray  # [N] int32
    parents: IntArray  # [N] int32
    log_probs: FloatArray | None = None  # [N] log of the drafter's probability given the parent; float32 on the wire
    rows: Rows | None = None  # sampled trees: [N + 1] what the children of ROOT, then of each node, were drawn from
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
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        log_probs: Sequence[float] | None = None,
        rows: Sequence[ProposalRow | None] | None = None,
    ) -> DraftTree:
        """From Python sequences of equal length, which are trusted; see `checked` for the wire."""
        return cls(
            np.asarray(tokens, dtype=np.int32),
            np.asarray(parents, dtype=np.int32),
            None if log_probs is None else np.asarray(log_probs, dtype=np.float64),
            None if rows is None else tuple(rows),
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
        rows: Rows | None = None,
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
        tree = cls(tokens, parents, log_probs, rows)
        if rows is not None:
            tree._check_rows(vocab_size)
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
        """The leading `count` nodes; a sampled tree is cut by `paceline.speculation.shape.cut` instead."""
        return self if count >= len(self) else self.keep(range(count))

    def keep(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of `nodes`, ascending and closed under parents."""
        return self._picked(ROOT, nodes)

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
        inside = {top}
        kept: list[int] = []
        for node, parent in enumerate(self.parents.tolist()):
            if parent in inside:
                inside.add(node)
                kept.append(node)
        return self._picked(top, kept)

    def _picked(self, top: int, nodes: Sequence[int]) -> DraftTree:
        """The tree of `nodes` under `top`, which becomes the root."""
        index = {top: ROOT} | {node: position for position, node in enumerate(nodes)}
        picked = np.asarray(nodes, dtype=np.int64)
        parents = np.asarray([index[int(self.parents[node])] for node in nodes], dtype=np.int32)
        log_probs = None if self.log_probs is None else self.log_probs[picked]
        rows = None if self.rows is None else tuple(self.rows[node + 1] for node in (top, *nodes))
        return DraftTree(self.tokens[picked], parents, log_probs, rows)

    def _check_rows(self, vocab_size: int) -> None:
        """Raises TreeFault unless there is a row for the root and each node with children, and it holds them."""
        assert self.rows is not None
        if len(self.rows) != len(self) + 1:
            raise TreeFault(f"{len(self.rows)} rows, allowed: {len(self) + 1} (the root's and one for each node)")
        for node in range(ROOT, len(self)):
            row, children = self.rows[node + 1], self.tokens[self.children(node)]
            fault = row.fault(vocab_size) if row is not None else "none, although it has children"
            if fault is not None and (row is not None or len(children)):
                raise TreeFault(f"row below node {node}: {fault}")
            if row is not None and not np.isin(children, row.token_ids).all():
                raise TreeFault(f"row below node {node}: it lacks a child that was drawn from it")
