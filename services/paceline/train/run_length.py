"""How far a run is, and the learning rate that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunLength:
    """The end of a run: a number of steps, or seconds. Exactly one is set."""

    steps: int | None = None
    seconds: float | None = None

    def share(self, steps: int, seconds: float) -> float:
        """The share of the run that is done after that many steps and seconds, 0 to 1."""
        done = steps / self.steps if self.steps is not None else seconds / (self.seconds or math.inf)
        return min(1.0, done)


def rate(share: float, highest: float, warm_up: float) -> float:
    """The learning rate: rises over the first `warm_up` of the run, then falls to 0 along half a cosine wave."""
    if share < warm_up:
        return highest * max(share / warm_up, 0.01)  # a first step without any effect would be a waste
    return highest * 0.5 * (1 + math.cos(math.pi * (share - warm_up) / (1 - warm_up)))
