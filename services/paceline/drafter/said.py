"""What two proposers say of the next token at one place: the suffix proposer's statistics and a model's row."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paceline.speculation.propose import Candidates

# A probability is placed between marks that are even in log odds, from about 0.001 to about 0.99.
FIRST_MARK, MARK_STEP, MARKS = -6.9, 1.15, 11
MASS = (0.3, 0.7)  # upper ends of ranges of what the suffix proposer gives to all tokens together
SUFFIX_ROWS = len(MASS) + 1 + MARKS  # tokens it does not name by that mass, then marks of those it names
MODEL_COLUMNS = 2 + MARKS  # the model has not looked, it does not name the token, then marks of those it names
UNLOOKED, UNNAMED = 0, 1  # columns


class Spot(NamedTuple):
    """Where a pair of probabilities lies in a table of SUFFIX_ROWS by MODEL_COLUMNS, between up to four cells."""

    row: int
    down: float  # share of the row below
    column: int
    right: float  # share of the column to the right


class Top(NamedTuple):
    """The token a member takes for the most probable."""

    token: int
    prob: float


class Said(NamedTuple):
    """What was said of tokens, N of them, each once."""

    tokens: list[int]  # [N]
    spots: list[Spot]  # [N]
    suffix: Top | None  # None: nothing was said
    model: Top | None  # None: it has not looked, or said nothing


def said_of(suffix: Mapping[int, float], model: Candidates | None, least: float) -> Said:
    """What is said of every token that one of them gives at least `least`.

    Args:
        suffix: probability of each token; their sum may be below 1.
        model: its most probable tokens, best first; None where it has not looked.
        least: above 0.
    """
    mass = bisect_left(MASS, sum(suffix.values()))
    named = {token: prob for token, prob in suffix.items() if prob >= least}
    looked: dict[int, float] = {}
    if model is not None:
        for token, log_prob in zip(model.tokens.tolist(), model.log_probs.tolist(), strict=True):
            prob = math.exp(log_prob)
            if prob < least:
                break
            looked[token] = prob
    tokens = [*named, *(token for token in looked if token not in named)]
    spots = []
    unnamed = UNLOOKED if model is None else UNNAMED
    for token in tokens:
        row, down = (mass, 0.0) if token not in suffix else _between(suffix[token], len(MASS) + 1)
        column, right = (unnamed, 0.0) if token not in looked else _between(looked[token], 2)
        spots.append(Spot(row, down, column, right))
    return Said(tokens, spots, _top(named.items()), _top(looked.items()))


def _between(prob: float, first: int) -> tuple[int, float]:
    """The mark below a probability, the first being number `first`, and the share of the next one."""
    odds = math.log(max(prob, 1e-9) / max(1.0 - prob, 1e-9))
    place = min(max((odds - FIRST_MARK) / MARK_STEP, 0.0), MARKS - 1.0)
    mark = min(int(place), MARKS - 2)
    return first + mark, place - mark


def _top(probs: Iterable[tuple[int, float]]) -> Top | None:
    best = min(((-prob, token) for token, prob in probs), default=None)
    return None if best is None else Top(best[1], -best[0])


def mark_prob(mark: int) -> float:
    """The probability at a mark, counted from 0."""
    return 1.0 / (1.0 + math.exp(-(FIRST_MARK + mark * MARK_STEP)))
