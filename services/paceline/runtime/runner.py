"""What an engine needs of a model: one operation, `execute(plan)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.runtime.kv import KVCache
from paceline.runtime.plan import PassPlan


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model."""

    name: str
    vocab_size: int  # ids below it can be emitted
    vocab_padded: int  # ids below it can be in a context; the width of a row of logits where a column is an id
    context_length: int  # most tokens of prompt and reply together
    context_reason: str  # what sets that limit, in words
    eos_token_ids: frozenset[int]
    dtype: str
    device: str
    token_ids: NDArray[np.int32] | None = field(
        default=None, compare=False
    )  # of the columns, ascending; None: the same

    def columns(self, vocab_size: int) -> int:
        """How many columns of a row, the leading ones, are of ids below `vocab_size` that can be emitted."""
        most = min(vocab_size, self.vocab_size)
        return most if self.token_ids is None else int(np.searchsorted(self.token_ids, most))

    def ids(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of columns, in the same order."""
        return columns if self.token_ids is None else self.token_ids[columns].astype(np.int64)


@dataclass(frozen=True, slots=True)
class PassRows:
    """Logits of the rows a plan asked for."""

    rows: torch.Tensor  # [R, columns] float32, on the model's device
    index: dict[tuple[int, int], int]  # (segment, node) -> row
    pass_s: float  # seconds the pass took
    tokens: int  # nodes run
    padded: int  # nodes run, padding included

    def logits(self, segment: int, node: int) -> torch.Tensor:
        """[columns] float32 logits after `node` of the plan's segment number `segment`."""
        return self.rows[self.index[segment, node]]


class ModelRunner(Protocol):
    """A model with its KV slots. Used by one thread at a time."""

    info: ModelInfo
    kv: KVCache
    costs: PassCosts

    def execute(self, plan: PassPlan) -> PassRows:
        """Runs every node of the plan and leaves their keys and values in each sequence's scratch.

        Nothing is committed; `kv.keep` does that. If it raises, no committed token has changed and every scratch of
        the plan is empty.
        """
        ...
