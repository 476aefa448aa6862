"""What a pass costs by its number of tokens. The function is measured, since it is not monotone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

log = logging.getLogger(__name__)

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
SAVING = 0.1  # a pass is padded only where that saves at least this share of its time
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
PATIENCE = 5  # budgets after which a machine is too slow, or too busy, for a table that can be trusted


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
        cls,
        run: Callable[[int], object],
        budget_s: float,
        *,
        most_tokens: int = SIZES[-1],
        clock: Callable[[], float] = time.perf_counter,
    ) -> PassCosts:
        """Times `run(tokens)` at each size in turns: three to nine rounds, as many as `budget_s` seconds hold.

        The fastest run of a size counts. Other work on the machine only ever adds time, and adds so much that medians
        of a few runs order the sizes at random. Where not even three rounds fit in five budgets there is no table.

        Args:
            run: runs a pass of that many tokens.
            budget_s: seconds to spend.
            most_tokens: sizes above it are left out.
            clock: monotone seconds.
        """
        fastest = {size: inf for size in SIZES if size <= most_tokens}
        started = clock()
        for turn in range(MOST_ROUNDS + 1):  # the first one warms caches and kernels up
            for size in fastest:
                before = clock()
                run(size)
                now = clock()
                if turn:
                    fastest[size] = min(fastest[size], now - before)
                if turn <= LEAST_ROUNDS and now - started > PATIENCE * budget_s:
                    log.warning("passes are not padded: measuring them takes more than %.0f s", PATIENCE * budget_s)
                    return cls.unmeasured()
            if turn >= LEAST_ROUNDS and clock() - started > budget_s:
                break
        return cls(fastest)

    def padded(self, tokens: int) -> int:
        """The size at or above `tokens` to run: the cheapest measured one, where it saves a tenth or more."""
        own = self.seconds(tokens)
        above = [(cost, size) for size, cost in self.seconds_by_size.items() if size > tokens]
        if not above or own is None:
            return tokens
        cost, size = min(above)
        return size if cost <= (1 - SAVING) * own else tokens

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
