"""Confidence intervals over prompts, which are what a study draws at random, and over runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval over prompts; the ends are NaN for fewer than two prompts."""

    mean: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """The median, and the order statistics that hold it with 95 %, whatever the law; with few values less than that."""
    ordered = sorted(values)
    below = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    first = max(0, below - 1)
    return Interval(float(np.median(ordered)), ordered[first], ordered[len(ordered) - 1 - first])


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Interval of sum(above) / sum(below), each entry a prompt's sums. A prompt whose `below` is 0 adds nothing."""
    sums = np.asarray([above, below], dtype=np.float64)
    return jackknife(sums, lambda each: float(each[0] / each[1]) if each[1] else math.nan)


def difference_interval(above: Sequence[float], other: Sequence[float], below: Sequence[float]) -> Interval:
    """Interval of sum(above) / sum(below) - sum(other) / sum(below), paired by prompt."""
    return ratio_interval([a - b for a, b in zip(above, other, strict=True)], below)


def jackknife(sums: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], float]) -> Interval:
    """Delete-one jackknife of a smooth function of sums.

    Args:
        sums: [K, P], K sums of each of P prompts.
        statistic: of the K sums over all prompts.
    """
    count = sums.shape[1]
    total = sums.sum(axis=1)
    mean = statistic(total)
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    left_out = np.asarray([statistic(total - sums[:, prompt]) for prompt in range(count)])
    error = math.sqrt((count - 1) / count * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Interval(mean, mean - half, mean + half)
