"""A pass as plain data: what to run, over which sequences, and which rows are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.speculation.tree import DraftTree, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The part of a pass that belongs to one sequence: n nodes that grow from the end of its committed tokens.

    A tree may grow over several passes: `parents` then also names the b nodes of earlier passes, which stay in the
    sequence's scratch, and the new nodes are numbered from b on.
    """

    sequence: int
    tokens: IntArray  # [n] int32, the new nodes, n at least 1
    parents: IntArray  # [b + n] int32, an earlier node, or -1 for the last committed token
    rows: tuple[int, ...]  # new nodes whose logits are wanted, ascending

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def base(self) -> int:
        """Nodes of earlier passes, b; mostly 0."""
        return len(self.parents) - len(self.tokens)

    @classmethod
    def chain(cls, sequence: int, tokens: Sequence[int] | IntArray, *, last_row: bool) -> Segment:
        """A path: a prefill chunk, or a plain decoding step."""
        count = len(tokens)
        return cls(
            sequence,
            np.asarray(tokens, dtype=np.int32),
            np.arange(-1, count - 1, dtype=np.int32),
            (count - 1,) if last_row else (),
        )

    @classmethod
    def verification(cls, sequence: int, pending: int, tree: DraftTree) -> Segment:
        """The pending token and a draft tree below it: node 0 is the pending token, tree node i is node i + 1."""
        return cls(
            sequence,
            np.concatenate(([pending], tree.tokens)).astype(np.int32),
            np.concatenate(([-1], tree.parents + 1)).astype(np.int32),
            tuple(range(len(tree) + 1)),
        )


@dataclass(frozen=True, slots=True)
class PassPlan:
    """One pass over several sequences, each at most once."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        """Raises ValueError if a sequence has two segments, which would share its scratch."""
        sequences = [segment.sequence for segment in self.segments]
        if len(set(sequences)) < len(sequences):
            raise ValueError(f"sequences {sequences}: each may have one segment in a pass")

    @property
    def tokens(self) -> int:
        """Nodes in all."""
        return sum(len(segment) for segment in self.segments)
