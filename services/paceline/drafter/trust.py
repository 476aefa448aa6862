"""How far members of a fused proposer are right, learned from what was accepted.

A context that a verifying walk has visited tells which token was right there, whatever was in the tree, and so it tells
of every token that a member had named whether it was the one. A table holds how often that was so, by what each of the
two had said of the token. What it says of a token is thus a probability that the target will emit it, whoever named it:
where both do, where they disagree, where one has never been right. Levels of a tree are known apart as far as enough
was seen of them; a session leans the table its own way, by member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.drafter.said import (
    CELLS,
    COLUMNS,
    MARKS,
    MODEL_NAMED,
    OWN_NAMED,
    UNLOOKED,
    Said,
    Top,
    mark_prob,
    top_of,
)

DEPTHS = 3  # levels of a tree that are known apart; the last stands for it and all deeper ones
WEIGHT = 6.0  # sightings that the first guess of a cell weighs against those over all levels
POOL = 20.0  # sightings that those over all levels weigh against the level's own
MOST = 1000.0  # sightings of a cell; the past is halved then
LEAST, MOST_PROB = 1e-4, 0.999  # what was never right keeps an order, what was always right leaves room for others
LEAN = 0.1  # how far a token moves what a session adds to the log odds of a member's tokens
LEAN_MOST = 3.0


def _first_guess(cell: int) -> float:
    """What a cell is taken for before anything is seen: most of what the two say together, or the only one's word."""
    row, column = divmod(cell, COLUMNS)
    suffix = mark_prob((row - OWN_NAMED) % MARKS) if row >= OWN_NAMED else 0.0
    model = mark_prob(column - MODEL_NAMED) if column >= MODEL_NAMED else 0.0
    if column == UNLOOKED:
        return max(LEAST, suffix)
    if row >= OWN_NAMED:
        return max(LEAST, min(0.7 * (suffix + model), MOST_PROB))
    return max(LEAST, model * (1.0 - 0.2 * row))  # the more the suffix proposer gives to others, the less


FIRST_GUESSES = [_first_guess(cell) for cell in range(CELLS)]


class _Counts:
    """Sightings and hits of every cell."""

    def __init__(self) -> None:
        self.seen = [0.0] * CELLS
        self.hits = [0.0] * CELLS

    def add(self, cell: int, share: float, *, right: bool) -> None:
        if self.seen[cell] >= MOST:
            self.seen[cell], self.hits[cell] = self.seen[cell] / 2, self.hits[cell] / 2
        self.seen[cell] += share
        if right:
            self.hits[cell] += share

    def copy(self) -> _Counts:
        made = _Counts()
        made.seen, made.hits = list(self.seen), list(self.hits)
        return made

    def rate(self, cell: int, first: float, weight: float) -> float:
        return (self.hits[cell] + weight * first) / (self.seen[cell] + weight)


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
    """How far a member was right at a level, for people. Counts fade."""

    member: str
    depth: int  # level of the tree; the last one stands for deeper ones too
    contexts: float  # where it said something and the right token became known
    promised: float  # mean probability of its first token
    right: float  # share of them whose first token was right


class Trust:
    """What is known over all sessions of one kind."""

    def __init__(self) -> None:
        self._pool = _Counts()
        self._levels = [_Counts() for _ in range(DEPTHS)]
        self._sums: dict[tuple[str, int], _Sums] = {}
        self.rates = [list(FIRST_GUESSES) for _ in range(DEPTHS)]  # [DEPTHS][CELLS] chance of a token being right

    def learn(self, said: Said, level: int, token: int) -> None:
        """Takes in which token was right where this was said; `level` from 0."""
        cells: set[int] = set()
        for each, spot in zip(said.tokens, said.spots, strict=True):
            for cell, share in spot.cells:
                cells.add(cell)
                self._pool.add(cell, share, right=each == token)
                self._levels[level].add(cell, share, right=each == token)
        for cell in cells:
            pooled = self._pool.rate(cell, FIRST_GUESSES[cell], WEIGHT)
            for known, rates in zip(self._levels, self.rates, strict=True):
                rates[cell] = max(LEAST, known.rate(cell, pooled, POOL))
        for member, probs in (("suffix", said.suffix), ("model", said.model)):
            if (top := top_of(probs)) is not None:
                self._sums.setdefault((member, level + 1), _Sums()).add(top, token)

    def copy(self) -> Trust:
        """What is known so far, to go its own way; its lines begin anew."""
        made = Trust()
        made._pool, made._levels = self._pool.copy(), [each.copy() for each in self._levels]
        made.rates = [list(each) for each in self.rates]
        return made

    def lines(self) -> list[TrustLine]:
        """What members were worth, by level. May be called from any thread."""
        return [
            TrustLine(member, depth, sums.contexts, sums.promised / sums.contexts, sums.right / sums.contexts)
            for (member, depth), sums in sorted(self._sums.items())
        ]


@dataclass(slots=True)
class SessionTrust:
    """What is known of one session, on top of what is known of all."""

    trust: Trust
    _lean: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # log odds of tokens of own text, store, model

    def probs(self, said: Said, depth: int) -> list[float]:
        """Probability of each token named at a level of the tree, 1 for the first; their sum is at most 1."""
        found = self._chances(said, depth)
        total = sum(found)
        return found if total <= MOST_PROB else [each * MOST_PROB / total for each in found]

    def learn(self, said: Said, depth: int, token: int) -> None:
        """Takes in which token was right where this was said."""
        own = store = model = 0.0
        for each, spot, chance in zip(said.tokens, said.spots, self._chances(said, depth), strict=True):
            error = (each == token) - chance
            own += error * spot.own
            store += error * spot.store
            model += error * spot.model
        for member, error in enumerate((own, store, model)):
            self._lean[member] = min(max(self._lean[member] + LEAN * error, -LEAN_MOST), LEAN_MOST)
        self.trust.learn(said, min(depth, DEPTHS) - 1, token)

    def _chances(self, said: Said, depth: int) -> list[float]:
        rates = self.trust.rates[min(depth, DEPTHS) - 1]
        by_own, by_store, by_model = (math.exp(each) for each in self._lean)
        chances = []
        for cells, own, store, model in said.spots:
            chance = 0.0
            for cell, share in cells:
                chance += share * rates[cell]
            leaning = (by_own if own else by_store if store else 1.0) * (by_model if model else 1.0)
            odds = leaning * chance / max(1.0 - chance, 1e-6)
            chances.append(odds / (1.0 + odds))
        return chances
