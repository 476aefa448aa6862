"""Rows: next-token distributions as they are served, on their support only (THEORY 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.speculation.sampling import SamplingParams

_PREFILTER = 1024  # candidates looked at before a full sort; top_p sets are nearly always smaller


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
        dtype: precision of the probabilities.

    Raises NonFiniteRow. Ties, at the argmax and at the edge of top-k and top-p, go to the lowest id.
    """
    logits = logits[:vocab_size]
    peak = logits.max()
    if not torch.isfinite(peak):  # NaN wins every max, and so does +inf; -inf is the max only if nothing is finite
        raise NonFiniteRow(f"the largest logit is {peak.item()}")
    if params.greedy:
        return Row.one_hot(int(torch.argmax((logits == peak).to(torch.uint8))))
    scaled = (logits.to(dtype) - peak.to(dtype)) / params.temperature
    token_ids: torch.Tensor | None = None  # None stands for every id, in order
    if 0 < params.top_k < vocab_size:
        token_ids = _largest(scaled, params.top_k)
        scaled = scaled[token_ids]
    probs = torch.softmax(scaled, dim=0)
    if params.top_p < 1.0:
        kept = _nucleus(probs, params.top_p)
        token_ids = kept if token_ids is None else token_ids[kept]
        probs = probs[kept]
    host = probs.cpu().numpy()
    ids = np.arange(vocab_size) if token_ids is None else token_ids.cpu().numpy()
    support = host > 0
    if not support.all():
        ids, host = ids[support], host[support]
    return Row(ids, host / host.sum())


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending indices of the `count` largest values, ties to the lowest index."""
    edge = torch.topk(values, count).values[-1]
    above = values > edge
    ties = torch.nonzero(values == edge).flatten()[: count - int(above.sum())]
    above[ties] = True
    return torch.nonzero(above).flatten()


def _nucleus(probs: torch.Tensor, mass: float) -> torch.Tensor:
    """Ascending indices of the smallest set of largest `probs` ([N]) whose sum reaches `mass`; at least one.

    The token that crosses the threshold is kept. The float64 sum has a slack of 1e-12, so that a sum that is equal to
    `mass` but for rounding counts as reached.
    """
    candidates = torch.arange(len(probs), device=probs.device)
    if len(probs) > _PREFILTER:
        edge = torch.topk(probs, _PREFILTER).values[-1]
        frequent = torch.nonzero(probs > edge).flatten()  # ties at the edge stay together: none of them is in
        if float(probs[frequent].sum(dtype=torch.float64)) >= mass:
            candidates = frequent
    ordered, order = torch.sort(probs[candidates], descending=True, stable=True)  # stable: equal ones by lowest id
    reached = torch.cumsum(ordered.double(), dim=0) >= mass - 1e-12
    count = int(torch.argmax(reached.to(torch.uint8))) + 1 if bool(reached[-1]) else len(ordered)
    return torch.sort(candidates[order[:count]]).values
