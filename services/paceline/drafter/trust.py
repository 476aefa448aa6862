"""How far members of a fused proposer are right, learned from what was accepted.

A context that a verifying walk has visited tells which token was right there, whatever was in the tree, and so it tells
of every token that a member had named whether it was the one. A table holds how often that was so, by what each of the
two had said of the token. What it says of a token is thus a probability that the target will emit it, whoever named it:
where both do, where they disagree, where one has never been right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.drafter.said import (
    MASS,
    MODEL_COLUMNS,
    SUFFIX_ROWS,
    UNLOOKED,
    UNNAMED,
    Said,
    Spot,
    Top,
    mark_prob,
)

DEPTHS = 3  # levels of a tree that are known apart; the last stands for it and all deeper ones
WEIGHT = 6.0  # sightings that a cell's first guess weighs against what is seen
POOL = 20.0  # sightings that a cell over all depths weighs against the depth's own
MOST = 1000.0  # sightings of a cell; the past is halved then
LEAST = 1e-4  # a probability is at least this, so that an order is left where nothing was right
MOST_PROB = 0.999


def _first_guess(row: int, column: int) -> float:
    """What a cell is taken for before anything is seen: the mean of the two, or the only one's word."""
    suffix = mark_prob(row - len(MASS) - 1) if row > len(MASS) else 0.0
    model = mark_prob(column - 2) if column > UNNAMED else 0.0
    if column == UNLOOKED:
        return max(suffix, LEAST)
    if row > len(MASS):
        return max((suffix + model) / 2, LEAST)
    return max(model * (1.0 - 0.3 * row), LEAST)  # the more the suffix proposer gives to others, the less


FIRST = [[_first_guess(row, column) for column in range(MODEL_COLUMNS)] for row in range(SUFFIX_ROWS)]


class _Counts:
    """Sightings and hits of every cell."""

    def __init__(self) -> None:
        self.seen = [[0.0] * MODEL_COLUMNS for _ in range(SUFFIX_ROWS)]
        self.hits = [[0.0] * MODEL_COLUMNS for _ in range(SUFFIX_ROWS)]

    def add(self, row: int, column: int, share: float, *, right: bool) -> None:
        seen, hits = self.seen[row], self.hits[row]
        if seen[column] >= MOST:
            seen[column], hits[column] = seen[column] / 2, hits[column] / 2
        seen[column] += share
        if right:
            hits[column] += share


@dataclass(slots=True)
class _Sums:
    """How often a member's first token was right. The past fades."""

    contexts: float = 0.0
    promised: float = 0.0
    right: float = 0.0

    def add(self, top: Top, token: int) -> None:
        if self.contexts >= MOST:
            self.contexts, self.promised, self.right = self.contexts / 2, self.promised / 2, self.right / 2
        self.contexts += 1
        self.promised += top.prob
        self.right += top.token == token


@dataclass(frozen=True, slots=True)
class TrustLine:
    """How far a member was right at a depth, for people. Counts fade."""

    member: str
    depth: int  # level of the tree; the last one stands for deeper ones too
    contexts: float  # where it said something and the right token became known
    promised: float  # mean probability of its first token
    right: float  # share of them whose first token was right


@dataclass(slots=True)
class Trust:
    """Tables of one kind of requests."""

    _pool: _Counts = field(default_factory=_Counts)
    _depths: list[_Counts] = field(default_factory=lambda: [_Counts() for _ in range(DEPTHS)])
    _sums: dict[tuple[str, int], _Sums] = field(default_factory=dict)

    def probs(self, said: Said, depth: int) -> list[float]:
        """Probability of each token named at a level of the tree, 1 for the first; their sum is at most 1."""
        known = self._depths[min(depth, DEPTHS) - 1]
        found = [
            sum(share * self._cell(known, row, column) for row, column, share in _corners(spot)) for spot in said.spots
        ]
        total = sum(found)
        return found if total <= MOST_PROB else [each * MOST_PROB / total for each in found]

    def learn(self, said: Said, depth: int, token: int) -> None:
        """Takes in which token was right where this was said."""
        level = min(depth, DEPTHS)
        known = self._depths[level - 1]
        for each, spot in zip(said.tokens, said.spots, strict=True):
            for row, column, share in _corners(spot):
                self._pool.add(row, column, share, right=each == token)
                known.add(row, column, share, right=each == token)
        for member, top in (("suffix", said.suffix), ("model", said.model)):
            if top is not None:
                self._sums.setdefault((member, level), _Sums()).add(top, token)

    def lines(self) -> list[TrustLine]:
        """What members were worth, by depth."""
        return [
            TrustLine(member, depth, sums.contexts, sums.promised / sums.contexts, sums.right / sums.contexts)
            for (member, depth), sums in sorted(self._sums.items())
        ]

    def _cell(self, known: _Counts, row: int, column: int) -> float:
        seen, hits = self._pool.seen[row][column], self._pool.hits[row][column]
        pooled = (hits + WEIGHT * FIRST[row][column]) / (seen + WEIGHT)
        return max(LEAST, (known.hits[row][column] + POOL * pooled) / (known.seen[row][column] + POOL))


def _corners(spot: Spot) -> Iterator[tuple[int, int, float]]:
    """Cells around a spot, and their shares, which sum to 1."""
    row, down, column, right = spot
    yield row, column, (1 - down) * (1 - right)
    if right:
        yield row, column + 1, (1 - down) * right
    if down:
        yield row + 1, column, down * (1 - right)
        if right:
            yield row + 1, column + 1, down * right
