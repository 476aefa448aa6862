"""What is said of the next token at one place: by the suffix proposer's statistics and by a model's row.

The suffix proposer has two sources, the session's own text and text served earlier. Both give one probability; which of
them has most of it is kept, since the same number is right more often from the one than from the other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from paceline.speculation.propose import Candidates

# A probability lies between marks that are even in log odds, from about 0.001 to about 0.99.
FIRST_MARK, MARK_STEP, MARKS = -6.9, 1.15, 11
MASS = (0.3, 0.7)  # upper ends of ranges of what the suffix proposer gives to all tokens together
OWN_NAMED = len(MASS) + 1  # rows before it are for tokens it does not name, by that mass; from it on marks
STORE_NAMED = OWN_NAMED + MARKS  # and these for tokens that text served earlier has most to say of
UNLOOKED, UNNAMED, MODEL_NAMED = 0, 1, 2  # columns: the model has not looked, it does not name the token, marks
ROWS, COLUMNS = STORE_NAMED + MARKS, MODEL_NAMED + MARKS
CELLS = ROWS * COLUMNS  # cell number is row * COLUMNS + column


class Spot(NamedTuple):
    """Where the two probabilities of a token lie in the table, between one, two or four cells."""

    cells: tuple[tuple[int, float], ...]  # (cell, share); shares sum to 1
    own: bool  # whether the suffix proposer names it, by the session's own text above all
    store: bool  # whether the suffix proposer names it, by text served earlier above all
    model: bool  # whether the model names it


class Heard(NamedTuple):
    """What the suffix proposer says."""

    probs: Mapping[int, float]  # of each token it has seen; their sum may be below 1
    own: Mapping[int, float]  # the part of them that comes from the session's own text


class Top(NamedTuple):
    """The token a member takes for the most probable."""

    token: int
    prob: float


class Said(NamedTuple):
    """What was said of N tokens, each once. One is made for every node that is looked at: in as few calls as can be."""

    tokens: list[int]  # [N]
    spots: list[Spot]  # [N]
    suffix: Mapping[int, float]  # probability of each token that the suffix proposer names
    model: Mapping[int, float]  # and of each that the model names; empty: it has not looked, or said nothing


def said_of(heard: Heard, model: Candidates | None, least: float, most: int) -> Said:
    """What is said of every token that one of them gives at least `least`.

    Args:
        heard: by the suffix proposer.
        model: its most probable tokens, best first; None where it has not looked.
        least: above 0.
        most: tokens of the model, beside those that the suffix proposer gives anything: all that can be of use.
    """
    suffix, own = heard.probs, heard.own
    looked: dict[int, float] = {}
    if model is not None:
        count = most if not suffix else len(model)
        pairs = zip(model.tokens[:count].tolist(), model.log_probs[:count].tolist(), strict=True)
        for rank, (token, log_prob) in enumerate(pairs):
            if rank < most or token in suffix:
                prob = math.exp(log_prob)
                if prob < least:
                    break
                looked[token] = prob
    named = {token: prob for token, prob in suffix.items() if prob >= least or token in looked}
    tokens, spots = list(named), []
    unnamed = (UNLOOKED if model is None else UNNAMED, 0.0)
    for token, prob in named.items():
        owned = token in own and 2 * own[token] >= prob
        row = _between(prob, OWN_NAMED if owned else STORE_NAMED)
        column = _between(looked[token], MODEL_NAMED) if token in looked else unnamed
        spots.append(Spot(_cells(row, column), owned, not owned, token in looked))
    others = (bisect_left(MASS, sum(suffix.values())), 0.0)
    for token, prob in looked.items():
        if token not in named:
            tokens.append(token)
            spots.append(Spot(_cells(others, _between(prob, MODEL_NAMED)), False, False, True))
    return Said(tokens, spots, named, looked)


def top_of(probs: Mapping[int, float]) -> Top | None:
    """The most probable token, of equals the lowest; None if there is none."""
    best = min(((-prob, token) for token, prob in probs.items()), default=None)
    return None if best is None else Top(best[1], -best[0])


def mark_prob(mark: int) -> float:
    """The probability at a mark, counted from 0."""
    return 1.0 / (1.0 + math.exp(-(FIRST_MARK + mark * MARK_STEP)))


def _between(prob: float, first: int) -> tuple[int, float]:
    """The mark below a probability, the first mark being number `first`, and the share of the next one."""
    place = (math.log(max(prob, 1e-9) / max(1.0 - prob, 1e-9)) - FIRST_MARK) / MARK_STEP
    if place <= 0.0:
        return first, 0.0
    if place >= MARKS - 1:
        return first + MARKS - 2, 1.0
    mark = int(place)
    return first + mark, place - mark


def _cells(row: tuple[int, float], column: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    (top, down), (left, right) = row, column
    cell = top * COLUMNS + left
    if not right:
        return ((cell, 1.0 - down), (cell + COLUMNS, down)) if down else ((cell, 1.0),)
    above = ((cell, (1.0 - down) * (1.0 - right)), (cell + 1, (1.0 - down) * right))
    if not down:
        return above
    return (*above, (cell + COLUMNS, down * (1.0 - right)), (cell + COLUMNS + 1, down * right))
