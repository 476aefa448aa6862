"""Whether looking below more of a tree with a model is worth its time.

The rule is tokens a second. A round emits the expected accepted tokens of its tree and one more, in the time it has
taken so far and the time that is still to come whatever is drafted. A look adds accepted tokens and seconds; it is made
if that raises the ratio. Where the target is busy with a pass of its own meanwhile, a look costs nothing.

Seconds of passes and of rounds are measured while serving. What a look adds is learned from the looks that were made,
by how sure the tree was of its next token before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.runtime.costs import PassCosts

MEMORY = 0.9  # weight that the past keeps per pass, or per round
SLOWEST = 4.0  # a round, or a pass against its table, counts as at most so many times the usual one: pauses are no pace
SURE = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)  # upper ends of ranges of the next token's probability; the last is open
FIRST_GAIN = 0.5  # tokens that a look adds at first where nothing is known, falling to 0 where the token is certain
STEP = 0.05  # how far one look moves what its range is known for
RETRY = 1 / 256  # how far a range forgets with every round that made no look, so that looking is tried again


class Times(Protocol):
    """Seconds that looking is weighed against."""

    def pass_s(self, tokens: int, sessions: int) -> float | None:
        """Of a pass of the model over so many tokens of each of so many sessions; None if not known yet."""
        ...

    def passed(self, tokens: int, seconds: float) -> None:
        """Takes in a pass."""
        ...

    def rounded(self, seconds: float) -> None:
        """Takes in the time from a whole tree to the next word of its session."""
        ...

    @property
    def round_s(self) -> float | None:
        """From a whole tree to the next word of its session; None if not known yet."""
        ...


class MeasuredTimes:
    """Times as they are measured while serving."""

    def __init__(self, costs: PassCosts) -> None:
        """`costs`: the model's table; where there is none, passes of any size count alike."""
        self._costs = costs
        self._pass = _Mean()  # seconds over the table's, or seconds
        self._round = _Mean()

    def pass_s(self, tokens: int, sessions: int) -> float | None:
        """Of a pass of the model over so many tokens of each of so many sessions; None if not known yet."""
        table = self._costs.seconds(self._costs.padded(tokens * sessions))
        if table is None:
            return self._pass.value
        return table * (self._pass.value or 1.0)

    def passed(self, tokens: int, seconds: float) -> None:
        """Takes in a pass."""
        self._pass.add(seconds / (self._costs.seconds(self._costs.padded(tokens)) or 1.0))

    def rounded(self, seconds: float) -> None:
        """Takes in the time from a whole tree to the next word of its session."""
        self._round.add(seconds)

    @property
    def round_s(self) -> float | None:
        """From a whole tree to the next word of its session; None if not known yet."""
        return self._round.value


class _Mean:
    """A fading mean of positive numbers that single large ones do not move much."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, number: float) -> None:
        if self.value is None:
            self.value = number
        else:
            self.value = MEMORY * self.value + (1 - MEMORY) * min(number, SLOWEST * self.value)


@dataclass(frozen=True, slots=True)
class Place:
    """A node that could be looked below."""

    reach: float  # probability of its path
    sure: float  # probability of the most probable token below it, as known before the look


class Gains:
    """Accepted tokens that looks have added, for a node that is certain to be reached, by how sure the tree was."""

    def __init__(self) -> None:
        self._first = [FIRST_GAIN * (1 - sure) for sure in (0.0, *SURE)]
        self._gains = list(self._first)

    def copy(self) -> Gains:
        """What is known so far, to go its own way."""
        made = Gains()
        made._gains = list(self._gains)
        return made

    def expected(self, place: Place) -> float:
        """Tokens that looking below a place is expected to add."""
        return place.reach * self._gains[bisect_left(SURE, place.sure)]

    def learn(self, places: Sequence[Place], gain: float) -> None:
        """Takes in what one look below all of `places` has added."""
        total = sum(place.reach * place.reach for place in places)
        if not total:
            return
        error = gain - sum(self.expected(place) for place in places)
        for place in places:
            known = bisect_left(SURE, place.sure)
            self._gains[known] = max(0.0, self._gains[known] + STEP * error * place.reach / total)

    def passed_over(self, place: Place) -> None:
        """No look was made below a place: what its range is known for fades."""
        known = bisect_left(SURE, place.sure)
        self._gains[known] += RETRY * (self._first[known] - self._gains[known])


def worthwhile(
    places: Sequence[Place],
    expected: float,
    gains: Gains,
    times: Times,
    *,
    unread: int,
    sessions: int,
    spent_s: float,
    free: bool,
) -> int:
    """How many of `places`, the best first, to look below in the next pass; 0 ends the tree.

    Args:
        places: where a look can be made, every parent before its children.
        expected: accepted tokens of the tree as it is.
        gains: what looks have added.
        times: measured seconds. While they are not known every look that adds something is made.
        unread: tokens that are run anyway if a pass is made.
        sessions: whose trees grow now; they look in the same pass, and all wait for it.
        spent_s: seconds of the passes made for this tree so far.
        free: whether the target is busy meanwhile.
    """
    added = [gains.expected(place) for place in places]
    round_s = times.round_s
    if free or round_s is None or times.pass_s(1, 1) is None:
        return len(places) if sum(added) > 0 else 0
    best, best_rate, gain = 0, (1 + expected) / max(round_s + spent_s, 1e-9), 0.0
    for count, each in enumerate(added, start=1):
        gain += each
        pass_s = times.pass_s(unread + count, sessions) or math.inf
        rate = (1 + expected + gain) / (round_s + spent_s + pass_s)
        if rate > best_rate:
            best, best_rate = count, rate
    return best
