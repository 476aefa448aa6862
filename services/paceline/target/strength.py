"""The coupling strength of sessions that name none, learned from what their trees were worth (THEORY 2).

Each kind of proposer and each range of temperatures has a table of its own, with a strength in force. It begins at 2.
Most sessions get the strength in force; every fourth of the first, later every sixteenth, tries one of its two
neighbours. A neighbour that is better by more than chance takes over. A session keeps its strength, so the tables
compare sessions; the tokens of a reply are the same whatever is chosen.

Simulated with sessions that differ by 50 %, 24 runs of each case (the constants below were picked on the same runs):
where 2 is the best this costs a mean of 0.8 to 1.2 % of accepted tokens over 300 sessions, at most 3 % in a run, and
0.4 to 0.6 % over 3,000. Where the best is 4 to 7 % above 2, a third of that is won by 3,000 sessions in the mean; a
single run may do worse than 2 all along.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

INFINITE = 1e6  # the largest strength a request may name: the noise only orders tokens of the same probability
STRENGTHS = (1.0, 1.5, 2.0, 3.0, 5.0, INFINITE)
FIRST = 2.0
WARM = (0.35, 0.6, 0.85, 1.15, 1.6)  # upper ends of ranges of temperatures; the last range is open
TRY_EARLY, EARLY, TRY_LATE = 4, 256, 16  # one of so many sessions tries a neighbour; early: the first so many
AHEAD_AWAY, AHEAD_BACK = 1.0, 0.3  # standard errors by which a neighbour must be ahead: away from FIRST, back to it
FEWEST = 6.0  # sessions of either, by weight, before they are compared
HALF_ROUNDS = 16  # a session of so many rounds weighs half: most of what sessions differ by is not chance
MEMORY = 1 - 1 / 4096  # weight that the past keeps per report
REPORT_ROUNDS = 128  # a session longer than this reports meanwhile
MAX_TABLES = 32  # the one that was used longest ago is forgotten


HOME = STRENGTHS.index(FIRST)


@dataclass(slots=True)
class _Sums:
    """Reports of sessions at one strength, weighted."""

    weight: float = 0.0
    squares: float = 0.0  # of weights
    values: float = 0.0  # weighted sum of accepted tokens a round
    value_squares: float = 0.0

    def add(self, rounds: int, accepted: int) -> None:
        """Takes in one report."""
        value, weight = accepted / rounds, rounds / (rounds + HALF_ROUNDS)
        self.weight += weight
        self.squares += weight * weight
        self.values += weight * value
        self.value_squares += weight * value * value

    def fade(self) -> None:
        """The past counts less with every report."""
        self.weight, self.squares = self.weight * MEMORY, self.squares * MEMORY * MEMORY
        self.values, self.value_squares = self.values * MEMORY, self.value_squares * MEMORY

    @property
    def mean(self) -> float:
        """Accepted tokens a round."""
        return self.values / self.weight if self.weight else 0.0

    @property
    def sessions(self) -> float:
        """Reports of the same weight that would be as good as these."""
        return self.weight * self.weight / self.squares if self.squares else 0.0


@dataclass(slots=True)
class _Table:
    in_force: int = HOME
    chosen: int = 0  # sessions so far
    sums: list[_Sums] = field(default_factory=lambda: [_Sums() for _ in STRENGTHS])

    def neighbours(self) -> list[int]:
        return [each for each in (self.in_force - 1, self.in_force + 1) if 0 <= each < len(STRENGTHS)]

    def choose(self) -> int:
        self.chosen += 1
        every = TRY_EARLY if self.chosen <= EARLY else TRY_LATE
        if self.chosen % every:
            return self.in_force
        near = self.neighbours()
        return near[self.chosen // every % len(near)]

    def learn(self, strength: int, rounds: int, accepted: int) -> None:
        for each in self.sums:
            each.fade()
        self.sums[strength].add(rounds, accepted)
        ahead = [each for each in self.neighbours() if self._ahead(each)]
        if ahead:
            self.in_force = max(ahead, key=lambda each: self.sums[each].mean)

    def _ahead(self, other: int) -> bool:
        ours, theirs = self.sums[other], self.sums[self.in_force]
        if min(ours.sessions, theirs.sessions) < FEWEST:
            return False
        within = sum(each.value_squares - each.values * each.mean for each in self.sums)
        variance = max(within, 0.0) / sum(each.weight for each in self.sums)
        error = (variance * (1 / ours.sessions + 1 / theirs.sessions)) ** 0.5
        away = abs(other - HOME) > abs(self.in_force - HOME)
        return ours.mean - theirs.mean > (AHEAD_AWAY if away else AHEAD_BACK) * error


@dataclass(frozen=True, slots=True)
class StrengthLine:
    """What is known of one strength, for people."""

    proposer: str
    temperature_to: float  # upper end of the range; 0 for the last, which has none
    strength: float
    in_force: bool
    sessions: float  # reports, by weight
    accepted: float  # draft tokens a drafted round


class Strengths:
    """The tables. Compute thread only, but for `lines`."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, int], _Table] = OrderedDict()
        self._lines: dict[tuple[str, int], tuple[StrengthLine, ...]] = {}  # replaced, never changed

    def choose(self, proposer: str, temperature: float) -> float:
        """The strength of a session that opens at a drafter of that kind."""
        return STRENGTHS[self._table(proposer, temperature).choose()]

    def learn(self, proposer: str, temperature: float, strength: float, rounds: int, accepted: int) -> None:
        """Takes in rounds of a session, all with a tree; there must be one at least."""
        table = self._table(proposer, temperature)
        table.learn(STRENGTHS.index(strength), rounds, accepted)
        warm = bisect_left(WARM, temperature)
        known = {key: lines for key, lines in self._lines.items() if key in self._tables}
        self._lines = {**known, (proposer, warm): tuple(_lines(proposer, warm, table))}

    def lines(self) -> list[StrengthLine]:
        """What reports have taught, a line for each strength. May be called from any thread."""
        return [line for lines in self._lines.values() for line in lines]

    def _table(self, proposer: str, temperature: float) -> _Table:
        key = (proposer, bisect_left(WARM, temperature))
        if key not in self._tables:
            self._tables[key] = _Table()
            if len(self._tables) > MAX_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]


def _lines(proposer: str, warm: int, table: _Table) -> Iterator[StrengthLine]:
    for number, (strength, sums) in enumerate(zip(STRENGTHS, table.sums, strict=True)):
        temperature_to = WARM[warm] if warm < len(WARM) else 0.0
        yield StrengthLine(proposer, temperature_to, strength, number == table.in_force, sums.sessions, sums.mean)


class Coupling:
    """The strength of one session, and what it has been worth since it was reported. Compute thread only."""

    __slots__ = ("_accepted", "_named", "_proposer", "_rounds", "_strengths", "_temperature", "strength")

    def __init__(self, strengths: Strengths, temperature: float, named: float | None) -> None:
        """`named` is the request's strength; None: a learned one."""
        self._strengths, self._temperature, self._named = strengths, temperature, named
        self._proposer: str | None = None  # where the strength was chosen for
        self._rounds = self._accepted = 0
        self.strength = 0.0  # 0 until it is chosen

    def choose(self, proposer: str) -> float:
        """The strength at a drafter of that kind; a session that is opened again keeps it."""
        if self._named is not None:
            self.strength = self._named
        elif self._proposer != proposer:
            self.report()
            self.strength, self._proposer = self._strengths.choose(proposer, self._temperature), proposer
        return self.strength

    def walked(self, accepted: int) -> None:
        """A round with a tree has ended."""
        self._rounds += 1
        self._accepted += accepted
        if self._rounds >= REPORT_ROUNDS:
            self.report()

    def report(self) -> None:
        """What the rounds since the last report were worth is learned."""
        if self._proposer is not None and self._rounds:
            self._strengths.learn(self._proposer, self._temperature, self.strength, self._rounds, self._accepted)
        self._rounds = self._accepted = 0
