"""Ratios of two timed things, measured in interleaved pairs so that drift of the machine falls on both."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from scipy import stats

Timer = Callable[[int], float]  # runs a pair's thing once and returns its seconds
Item = TypeVar("Item")
Ours = TypeVar("Ours")
Base = TypeVar("Base")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of time(base) / time(ours): above 1, ours is faster. With its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    pairs: int
    ours_s: float  # median seconds of ours
    base_s: float  # median seconds of the baseline

    def as_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return asdict(self)

    def row(self, over_prompts: Ratio | None) -> dict[str, float | None]:
        """Cells of a table, beside the same ratio with an interval that holds the spread between prompts as well."""
        return {
            "ratio": self.mean,
            "low": self.low,
            "high": self.high,
            "low_prompts": None if over_prompts is None else over_prompts.low,
            "high_prompts": None if over_prompts is None else over_prompts.high,
            "pairs": self.pairs,
        }


def turned(items: Sequence[Item], turn: int) -> list[Item]:
    """The items from the next one on in every turn, every second time backwards: drift falls on all alike."""
    start = (turn + turn % 2) % len(items)  # backwards the one before comes first
    order = [*items[start:], *items[:start]]
    return order[::-1] if turn % 2 else order


def interleaved(ours: Timer, base: Timer, pairs: int) -> tuple[list[float], list[float]]:
    """Runs `pairs` pairs in the order A B B A; each callable takes the pair's number and returns its seconds."""
    ours_s, base_s = [], []
    for pair in range(pairs):
        if pair % 2 == 0:
            ours_s.append(ours(pair))
            base_s.append(base(pair))
        else:
            base_s.append(base(pair))
            ours_s.append(ours(pair))
    return ours_s, base_s


async def pair_in_turn(
    ours: Callable[[int], Awaitable[Ours]], base: Callable[[int], Awaitable[Base]], pair: int, cycle: int
) -> tuple[Ours, Base]:
    """One of such pairs, for coroutines.

    The order turns over after each `cycle` pairs, so that a thing that comes back with every cycle is measured in both.
    """
    if (pair + pair // cycle) % 2 == 0:
        first = await ours(pair)
        return first, await base(pair)
    second = await base(pair)
    return await ours(pair), second


def ratio_of(ours_s: Sequence[float], base_s: Sequence[float], groups: Sequence[int] | None = None) -> Ratio:
    """The ratio over pairs, with a t interval on the logarithms.

    Args:
        ours_s: seconds of ours, one a pair.
        base_s: seconds of the baseline.
        groups: what each pair was measured on, by number. The interval then holds for these things as they are: it has
            the spread within a thing and not the one between things. None takes all pairs as draws of one kind.

    Raises ValueError for fewer than two pairs, or where no group has two.
    """
    logs = [math.log(base / ours) for ours, base in zip(ours_s, base_s, strict=True)]
    kinds = [0] * len(logs) if groups is None else list(groups)
    members = {kind: [log for log, its in zip(logs, kinds, strict=True) if its == kind] for kind in kinds}
    free = len(logs) - len(members)
    if free < 1:
        raise ValueError("a confidence interval needs at least two pairs of one thing")
    squares = sum((log - statistics.fmean(each)) ** 2 for each in members.values() for log in each)
    mean = statistics.fmean(logs)
    half = float(stats.t.ppf(0.975, free)) * math.sqrt(squares / free / len(logs))
    return Ratio(
        mean=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        pairs=len(logs),
        ours_s=statistics.median(ours_s),
        base_s=statistics.median(base_s),
    )


def ratio_by_prompt(
    ours_s: Sequence[float], base_s: Sequence[float], prompt_of: Sequence[int]
) -> tuple[Ratio, Ratio | None]:
    """The ratio over these prompts as they are, and over them as draws of all prompts.

    Where a prompt came once only, the first one is the second: its interval holds the spread between prompts, too. The
    second is None for one prompt, which tells nothing of others.

    Args:
        ours_s: seconds of ours, one a pair.
        base_s: seconds of the baseline.
        prompt_of: the prompt of each pair, by number.

    Raises ValueError for fewer than two pairs.
    """
    by_pair, came = ratio_of(ours_s, base_s), Counter(prompt_of)
    here = ratio_of(ours_s, base_s, prompt_of) if min(came.values()) >= 2 else by_pair
    return here, by_pair if len(came) > 1 else None


def percentiles(values: Sequence[float], points: Sequence[int] = (50, 90, 99)) -> Iterator[tuple[int, float]]:
    """(point, value) by nearest rank."""
    ordered = sorted(values)
    for point in points:
        yield point, ordered[min(len(ordered) - 1, math.ceil(point / 100 * len(ordered)) - 1)]
