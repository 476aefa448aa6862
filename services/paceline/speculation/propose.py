"""Candidate children of a node: ranked, or coupled to the target's noise (THEORY 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.noise import Purpose, gumbel, noise_key
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Children a drafter would give a node, W of them, best first, ties by lowest id."""

    tokens: NDArray[np.int32]  # [W] int32
    log_probs: NDArray[np.float64]  # [W] log of the probability the drafter gives each

    def __len__(self) -> int:
        return len(self.tokens)


NO_CANDIDATES = Candidates(np.zeros(0, dtype=np.int32), np.zeros(0))


def ranked(token_ids: NDArray[np.integer[Any]], log_probs: NDArray[np.floating[Any]], width: int) -> Candidates:
    """The `width` most probable tokens; those with probability 0 are never proposed.

    Args:
        token_ids: [N], any order, no id twice.
        log_probs: [N] natural logarithms.
        width: most candidates.
    """
    order = np.lexsort((token_ids, -log_probs))[:width]
    order = order[np.isfinite(log_probs[order])]
    return Candidates(token_ids[order].astype(np.int32), log_probs[order].astype(np.float64))


def coupled(
    token_ids: NDArray[np.integer[Any]],
    log_probs: NDArray[np.floating[Any]],
    *,
    key: int,
    strength: float,
    width: int,
) -> Candidates:
    """The candidates most likely to be the target's own draw, given the noise of that draw.

    They are the ranked candidates of the drafter's row tilted by the noise, `draft_probs * exp(g / strength)`, scaled
    to the mass the untilted candidates have (1 for a whole row): the order of `strength * log draft_probs + g`.
    Strength 1 imitates a target equal to the drafter, infinity ignores the noise. The tilted values also serve as path
    scores, so a tree spends its budget where the noise points.

    Args:
        token_ids: [N], any order, no id twice.
        log_probs: [N] natural logarithms of the drafter's probabilities, whose sum may be below 1.
        key: the noise of the guessed draw, from `draft_noise_key`.
        strength: above 0.
        width: most candidates.

    Raises ValueError if `strength` is not above 0.
    """
    if not strength > 0:
        raise ValueError(f"strength: got {strength}, allowed: above 0, infinity included")
    if math.isinf(strength):
        return ranked(token_ids, log_probs, width)
    tilted = log_probs + gumbel(key, token_ids.astype(np.int64)) / strength
    peak = tilted.max(initial=-math.inf)
    if not math.isfinite(peak):
        return NO_CANDIDATES
    total = peak + math.log(float(np.exp(tilted - peak).sum()))
    mass = min(1.0, float(np.exp(log_probs).sum()))
    return ranked(token_ids, tilted - total + math.log(mass), width)


def draft_noise_key(params: SamplingParams, position: int) -> int:
    """Key of the noise the target draws with at `position` of the full context."""
    return noise_key(params.seed, params.choice, position, Purpose.DRAW)


def tilted(row: Row, key: int) -> Row:
    """The target's own row tilted by the noise of its draw (strength 1): what a coupled tree is pruned by."""
    weights = np.log(row.probs.astype(np.float64)) + gumbel(key, row.token_ids)
    probs = np.exp(weights - weights.max())
    return Row(row.token_ids, probs / probs.sum())
