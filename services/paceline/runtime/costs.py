"""What a pass costs by its number of tokens. The function is measured, since it is not monotone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds a pass takes by number of tokens, at the measured sizes."""

    seconds_by_size: dict[int, float]  # ascending sizes; empty if not measured

    @classmethod
    def unmeasured(cls) -> PassCosts:
        """No table: nothing is padded."""
        return cls({})

    @classmethod
    def measure(
        cls, run: Callable[[int], object], budget_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> PassCosts:
        """Times `run(tokens)` at each size in turns, three to nine rounds, stopping after `budget_s` seconds.

        The median counts: one slow pass on a busy machine must not decide how passes are padded from then on.
        """
        timings: dict[int, list[float]] = {size: [] for size in SIZES}
        started = clock()
        for turn in range(10):
            for size in SIZES:
                before = clock()
                run(size)
                if turn:  # the first turn warms caches and kernels up
                    timings[size].append(clock() - before)
            if turn >= 3 and clock() - started > budget_s:
                break
        return cls({size: statistics.median(taken) for size, taken in timings.items()})

    def padded(self, tokens: int) -> int:
        """The size at or above `tokens` to run: the cheapest measured one, where it saves more than a twentieth."""
        own = self.seconds(tokens)
        above = [(cost, size) for size, cost in self.seconds_by_size.items() if size > tokens]
        if not above or own is None:
            return tokens
        cost, size = min(above)
        return size if cost < 0.95 * own else tokens

    def seconds(self, tokens: int) -> float | None:
        """Seconds of a pass, between sizes by a straight line, beyond the table in proportion; None if unmeasured."""
        sizes = list(self.seconds_by_size)
        if not sizes:
            return None
        if tokens >= sizes[-1]:
            return self.seconds_by_size[sizes[-1]] * tokens / sizes[-1]
        upper = next(size for size in sizes if size >= tokens)
        lower = max((size for size in sizes if size <= tokens), default=upper)
        if lower == upper:
            return self.seconds_by_size[upper]
        share = (tokens - lower) / (upper - lower)
        return (1 - share) * self.seconds_by_size[lower] + share * self.seconds_by_size[upper]
