"""The row that siblings are drawn from, as both ends have it (THEORY 3, clause 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.noise import Purpose, exponential, noise_key


@dataclass(frozen=True, slots=True, eq=False)
class ProposalRow:
    """A drafter's distribution on its own terms: `weights / sum(weights)` in float64, on M tokens.

    What travels defines it, so that rounding on the way cannot make the two ends differ.
    """

    token_ids: NDArray[np.int32]  # [M] no id twice
    weights: NDArray[np.floating[Any]]  # [M] above 0; float32 wherever they travel

    def __len__(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def of(token_ids: NDArray[np.integer[Any]], probs: NDArray[np.floating[Any]], largest: int) -> ProposalRow | None:
        """The `largest` most probable tokens, ties to the lowest id; None if no probability is left in float32."""
        order = np.lexsort((token_ids, -probs))[:largest]
        weights = probs[order].astype(np.float32)
        held = weights > 0
        if not held.any():
            return None
        return ProposalRow(token_ids[order][held].astype(np.int32), weights[held])

    def fault(self, vocab_size: int) -> str | None:
        """What is wrong with a row from the wire; None if nothing is."""
        if not len(self.token_ids) or len(self.token_ids) != len(self.weights):
            return f"{len(self.token_ids)} ids and {len(self.weights)} weights, allowed: as many, at least one"
        if not (0 <= int(self.token_ids.min()) and int(self.token_ids.max()) < vocab_size):
            return f"ids {int(self.token_ids.min())} to {int(self.token_ids.max())}, allowed: 0 to {vocab_size - 1}"
        if len(np.unique(self.token_ids)) != len(self.token_ids):
            return "an id occurs twice"
        if not (np.isfinite(self.weights).all() and float(self.weights.min()) > 0):
            return "weights must be finite and above 0"
        return None

    def draw(self, key: int, count: int) -> list[int]:
        """`count` siblings (fewer if the row is smaller) without replacement, in drawn order: Gumbel-top-k.

        Args:
            key: of a stream that is used for nothing else, from `sibling_key`.
            count: fixed before anything is drawn (clause 2).
        """
        times = exponential(key, self.token_ids.astype(np.int64)) / self.weights.astype(np.float64)
        return [int(token) for token in self.token_ids[np.lexsort((self.token_ids, times))[:count]]]


def sibling_key(seed: int, choice: int, position: int) -> int:
    """Key of the noise that draws the siblings at `position` of the full context.

    One stream a position serves every node there, since a walk visits one at most.

    Args:
        seed: from `propose_seed`.
        choice: index of the reply among n.
        position: index in the full context of the tokens that are drawn.
    """
    return noise_key(seed, choice, position, Purpose.PROPOSE)
