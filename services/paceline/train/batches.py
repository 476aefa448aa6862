"""Batches of a corpus: sequences of similar length, padded on the right, and the teacher's rows over a head's columns.

Causal attention never looks at what is behind a token, so padding on the right needs no mask. Legend: B sequences,
L tokens of the longest, R rows (one for each reply token), K tokens of a teacher's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.train.corpus import Corpus

_POOL = 64  # batches whose sequences are sorted together: padding stays small, and order stays random


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step learns from."""

    ids: torch.Tensor  # [B, L] int64, 0 behind a sequence's end
    wanted: torch.Tensor  # [R] int64: the token before each reply token, in [B * L]
    columns: torch.Tensor  # [R, K] int64: column of the head, 0 where the head has none
    probs: torch.Tensor  # [R, K] float32: what is learned, of sum 1; 0 where the head has no column
    weights: torch.Tensor  # [R] float32: probability that the teacher's row has within the head
    best: torch.Tensor  # [R] int64: column of the teacher's most probable token, -1 where the head has none
    teacher: torch.Tensor  # [R, K] float32: the teacher's own probabilities of `columns`

    def to(self, device: torch.device) -> Batch:
        """On another device."""
        return Batch(*(getattr(self, name).to(device, non_blocking=True) for name in self.__slots__))


def epoch_plan(
    lengths: NDArray[np.int64], members: NDArray[np.int64], batch_tokens: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The batches of an epoch, as indices of sequences; the same for the same arguments.

    Args:
        lengths: [sequences] tokens of each.
        members: those that take part.
        batch_tokens: most tokens of a batch, padding included; a longer sequence is alone in its batch.
        seed: of the order.
        epoch: counted from 0; each has an order of its own.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(members)
    pool = max(1, int(_POOL * batch_tokens / max(1.0, float(lengths[members].mean()))))
    plan: list[NDArray[np.int64]] = []
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        plan += _filled(part[np.argsort(lengths[part], kind="stable")], lengths, batch_tokens)
    return [plan[index] for index in random.permutation(len(plan))]


def _filled(ascending: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int) -> list[NDArray[np.int64]]:
    """Cuts sequences of ascending length into batches."""
    batches, begin = [], 0
    for end in range(1, len(ascending) + 1):
        full = end == len(ascending) or (end + 1 - begin) * lengths[ascending[end]] > batch_tokens
        if full:
            batches.append(ascending[begin:end])
            begin = end
    return batches


class Batcher:
    """Makes batches of a corpus for one head."""

    def __init__(
        self, corpus: Corpus, token_ids: NDArray[np.int32] | None, vocab_size: int, temperature: float, argmax: float
    ) -> None:
        """Takes them.

        Args:
            corpus: the corpus.
            token_ids: [C] ids of the head's columns; None: a column is its id.
            vocab_size: ids of the target.
            temperature: of the teacher's rows, in what is learned.
            argmax: share of what is learned that is the teacher's most probable token alone.
        """
        self._corpus, self._temperature, self._argmax = corpus, temperature, argmax
        self._column = np.arange(vocab_size, dtype=np.int64)
        if token_ids is not None:
            self._column = np.full(vocab_size, -1, dtype=np.int64)
            self._column[token_ids] = np.arange(len(token_ids))

    def batch(self, sequences: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The batch of these sequences."""
        held = [self._corpus[int(index)] for index in sequences]
        longest = max(len(each.tokens) for each in held)
        ids = np.zeros((len(held), longest), dtype=np.int64)
        wanted, rows = [], []
        for number, each in enumerate(held):
            ids[number, : len(each.tokens)] = each.tokens
            first = number * longest + each.prompt_length - 1
            wanted.append(np.arange(first, first + len(each.row_ids)))
            rows.append(each)
        columns = self._column[np.concatenate([each.row_ids for each in rows])]
        logs = np.concatenate([each.row_log_probs for each in rows]).astype(np.float32)
        inside = columns >= 0
        teacher = np.where(inside, np.exp(logs), 0.0).astype(np.float32)
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(np.concatenate(wanted)),
            torch.from_numpy(np.where(inside, columns, 0)),
            torch.from_numpy(self._learned(logs, inside)),
            torch.from_numpy(teacher.sum(axis=1)),
            torch.from_numpy(columns[:, 0].copy()),
            torch.from_numpy(teacher),
        )

    def _learned(self, logs: NDArray[np.float32], inside: NDArray[np.bool_]) -> NDArray[np.float32]:
        scaled = np.where(inside, np.exp((logs - logs[:, :1]) / self._temperature), 0.0)
        probs = scaled / np.maximum(scaled.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        if self._argmax:
            first = inside[:, 0]
            probs[first] *= 1 - self._argmax
            probs[first, 0] += self._argmax
        return probs.astype(np.float32)
