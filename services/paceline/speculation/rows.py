"""Rows: next-token distributions as they are served, on their support only (THEORY 1).

The arithmetic is numpy's, on the host and in one thread, wherever the logits lie: the same logits give the same row on
every device, and a row of a vocabulary is too small to share between threads that the model's passes want.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.speculation.sampling import SamplingParams

_PREFILTER = 1024  # probabilities sorted before all are; top_p sets are nearly always smaller
_MASS_SLACK = 1e-12  # a float64 sum equal to top_p but for rounding counts as reached
_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class NonFiniteRow(ValueError):
    """Logits hold NaN or +inf, or nothing finite; no token can be drawn from them."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A next-token distribution on its support, S tokens."""

    token_ids: NDArray[np.int64]  # [S] ascending
    probs: NDArray[np.floating[Any]]  # [S] above 0, sum 1

    @staticmethod
    def one_hot(token: int) -> Row:
        """All mass on one token."""
        return Row(np.asarray([token], dtype=np.int64), np.ones(1))

    @staticmethod
    def from_dense(probs: NDArray[np.floating[Any]]) -> Row:
        """From probabilities by token id ([V], sum 1), in their own dtype."""
        token_ids = np.flatnonzero(probs > 0)
        return Row(token_ids, probs[token_ids])

    def prob(self, token: int) -> float:
        """Probability of `token`, 0 outside the support."""
        index = int(np.searchsorted(self.token_ids, token))
        return float(self.probs[index]) if index < len(self.token_ids) and self.token_ids[index] == token else 0.0

    def without(self, tokens: Sequence[int]) -> Row:
        """The row given that the token is none of `tokens`, renormalised. Raises ValueError if nothing is left."""
        kept = ~np.isin(self.token_ids, np.asarray(tokens, dtype=np.int64))
        probs = self.probs[kept].astype(np.float64)
        total = float(probs.sum())
        if not total > 0:
            raise ValueError("the row has no token but those left out")
        return Row(self.token_ids[kept], probs / total)

    def only(self, other: Row) -> Row:
        """The part on tokens of `other`, as it is: its sum may be below 1."""
        kept = np.isin(self.token_ids, other.token_ids)
        return Row(self.token_ids[kept], self.probs[kept])

    def largest(self, count: int) -> Row:
        """The part on the `count` most probable tokens, as it is; ties to the lowest id."""
        if count >= len(self.probs):
            return self
        kept = _largest(self.probs, np.partition(self.probs, -count)[-count], count)
        return Row(self.token_ids[kept], self.probs[kept])

    def argmax(self) -> int:
        """The most probable token, ties to the lowest id."""
        return int(self.token_ids[np.argmax(self.probs)])

    def dense(self, vocab_size: int) -> NDArray[np.floating[Any]]:
        """Probabilities by token id, [vocab_size]."""
        full = np.zeros(vocab_size, dtype=self.probs.dtype)
        full[self.token_ids] = self.probs
        return full


def process(logits: torch.Tensor, params: SamplingParams, vocab_size: int, dtype: torch.dtype = torch.float64) -> Row:
    """The row a request serves: temperature, then top-k, then top-p, renormalised.

    Args:
        logits: [vocab_padded] float, on any device; ids from `vocab_size` on are padding and get no mass.
        params: the request's parameters, in range.
        vocab_size: number of tokens that may be emitted.
        dtype: precision of the probabilities, float32 or float64.

    Raises NonFiniteRow. Ties, at the argmax and at the edge of top-k and top-p, go to the lowest id.
    """
    values = _on_host(logits[:vocab_size])
    best = int(values.argmax())  # the first of equals; NaN comes before every number
    peak = values[best]
    if not np.isfinite(peak):  # hence a NaN or +inf anywhere is found here; -inf is the largest only if all are
        raise NonFiniteRow(f"the largest logit is {peak}")
    if params.greedy:
        return Row.one_hot(best)
    token_ids: NDArray[np.int64] | None = None  # None stands for every id, in order
    if 0 < params.top_k < len(values):
        token_ids = _largest(values, np.partition(values, -params.top_k)[-params.top_k], params.top_k)
        values = values[token_ids]
    probs = values.astype(_DTYPES[dtype])
    probs -= peak
    probs /= params.temperature
    np.exp(probs, out=probs)
    probs /= probs.sum()
    if params.top_p < 1.0:
        kept = smallest_set(probs, params.top_p)
        token_ids = kept if token_ids is None else token_ids[kept]
        probs = probs[kept]
        probs /= probs.sum()
    if token_ids is None:
        token_ids = np.arange(len(probs))
    if probs.min() > 0:
        return Row(token_ids, probs)
    support = probs > 0  # without what is masked, or too small for the precision
    return Row(token_ids[support], probs[support])


def nucleus(row: Row, mass: float) -> Row:
    """The smallest set of most probable tokens whose mass reaches `mass`, as they are in `row`; none for mass 0."""
    kept = smallest_set(row.probs, mass) if mass > 0 else slice(0, 0)
    return Row(row.token_ids[kept], row.probs[kept])


def _on_host(logits: torch.Tensor) -> NDArray[np.floating[Any]]:
    """[N] as numpy has it; a view if it can be. Shorter floats become float32, which holds each of them exactly."""
    if logits.dtype not in _DTYPES:
        logits = logits.float()
    values: NDArray[np.floating[Any]] = logits.detach().cpu().numpy()
    return values


def _largest(values: NDArray[np.floating[Any]], edge: np.floating[Any], count: int) -> NDArray[np.int64]:
    """Ascending indices of the `count` largest values, ties to the lowest index; `edge` is the smallest of them."""
    chosen = values > edge
    ties = np.flatnonzero(values == edge)
    chosen[ties[: count - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)


def smallest_set(probs: NDArray[np.floating[Any]], mass: float) -> NDArray[np.int64]:
    """Ascending indices of the smallest set of largest `probs` ([N], sum 1) whose sum reaches `mass`; at least one.

    The token that crosses the threshold is kept. Only values are sorted, so that ties need no care before the end.
    """
    largest = probs
    if len(probs) > _PREFILTER:
        leading = np.partition(probs, -_PREFILTER)[-_PREFILTER:]
        if float(leading.sum(dtype=np.float64)) >= mass:
            largest = leading
    ordered = np.sort(largest)[::-1]
    reached = np.cumsum(ordered, dtype=np.float64)
    count = min(int(np.searchsorted(reached, mass - _MASS_SLACK)) + 1, len(ordered))
    return _largest(probs, ordered[count - 1], count)
