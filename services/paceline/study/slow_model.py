"""A table model whose passes take a given time: the pace of another machine under the real engines."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import PassRows
from paceline.runtime.toy import ToyRunner

SIZES = (1, 64)


class SlowModel(ToyRunner):
    """Serves a table; every pass takes `pass_s` seconds, whatever its size, as on a GPU that waits for its memory."""

    def __init__(self, table: NDArray[np.float64], pass_s: float) -> None:
        super().__init__(table, context_length=8192)
        self.costs = PassCosts(dict.fromkeys(SIZES, pass_s))
        self._pass_s = pass_s

    def execute(self, plan: PassPlan) -> PassRows:
        """Sleeps for what is left of the pass."""
        started = time.perf_counter()
        rows = super().execute(plan)
        time.sleep(max(0.0, self._pass_s - (time.perf_counter() - started)))
        return PassRows(rows.rows, rows.index, self._pass_s, rows.tokens, rows.padded)


def tables(vocab: int, likeness: float, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tables of a target and of a drafter that is `likeness` of the way from an unrelated one to the target."""
    random = np.random.default_rng(seed)
    target = random.dirichlet([0.15] * vocab, size=vocab)
    other = random.dirichlet([0.15] * vocab, size=vocab)
    target = (target + 1e-6) / (target + 1e-6).sum(axis=1, keepdims=True)
    drafter = likeness * target + (1 - likeness) * (other + 1e-6) / (other + 1e-6).sum(axis=1, keepdims=True)
    return target, drafter
