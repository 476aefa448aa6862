"""What steps take, by how many sessions are in them: passes, waits for trees, and what drafting beside a pass costs."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.target.allowance import Allowance
from paceline.target.line import Line
from paceline.target.waits import EASE, Waits

LATELY = 0.95  # weight that the past keeps per step in the share of steps with drafts
SELDOM = 0.35  # such a share; some 20 steps without drafts lead there
SLOWED = 0.2  # how far one step moves how much longer steps take for which trees were asked for, or beside such trees
FEW = 2  # plain steps measured; a single one may have been held up
CLEAR = 1.5  # such a lead of drafting is believed though
SOON, ANEW = 8, 64  # steps with drafts between plain ones, while few were measured and from then on
BEGIN = 4  # sessions at most that draft after a step in which nobody did; times as many after others
OUTLIER = 2.0  # times what was expected: a step that took longer was held up by something else


@dataclass(slots=True)
class _Load:
    """One magnitude of load."""

    allowance: Allowance = field(default_factory=Allowance)
    line: Line = field(default_factory=Line)  # seconds of a step by the table's
    waits: Waits | None = None  # None: nobody has waited yet
    slowed: float = 1.0  # times as long as others that steps take for which trees were asked for
    beside: float = 1.0  # times as long as others that steps take beside a tree that is only followed
    drafted: float = 1.0  # share of the last steps in which anybody drafted
    drafting: int = 0  # sessions that drafted in the last step
    since: int = ANEW  # steps since a plain one


class LoadTimes:
    """Times are known apart for 1, 2 to 3, 4 to 7, ... sessions in a step. Compute thread only."""

    def __init__(self, costs: PassCosts) -> None:
        """`costs`: seconds of passes by their tokens."""
        self._costs = costs
        self._table = np.zeros(0)  # [tokens + 1] seconds of a pass as it is run
        self._loads: defaultdict[int, _Load] = defaultdict(_Load)  # by magnitude of the number of sessions

    def seconds(self, sessions: int, most: int) -> NDArray[np.float64]:
        """[at least most + 1] seconds of a step by its tokens, with so many sessions in it."""
        self._extend(most)
        line = self._load(sessions).line
        return line.at(self._table) if line.known else self._table

    def slowed(self, sessions: int) -> float:
        """How many times as long a step takes for which trees are asked for, beside what its tokens cost."""
        return max(self._load(sessions).slowed, 1.0)

    def waits(self, sessions: int) -> Waits:
        """Of a load; one that is new begins with what is known of the nearest one, a lighter one if there is any."""
        load, magnitude = self._load(sessions), sessions.bit_length()
        if load.waits is None:
            known = [(each > magnitude, abs(each - magnitude), each) for each in self._loads if self._loads[each].waits]
            nearest = self._loads[min(known)[2]].waits if known else None
            load.waits = Waits() if nearest is None else nearest.copy()
        return load.waits

    def seldom(self, sessions: int) -> bool:
        """True if hardly anybody has drafted lately."""
        return self._load(sessions).drafted < SELDOM

    def planned(self, sessions: int, *, drafting: int) -> None:
        """A step is to come in which so many sessions draft."""
        load = self._load(sessions)
        load.drafted = LATELY * load.drafted + (1 - LATELY) * (drafting > 0)
        load.drafting = drafting
        load.since = load.since + 1 if drafting else 0

    def most_drafting(self, sessions: int) -> int:
        """Sessions that may draft in a step: four times as many as in the last one, so that a guess costs little."""
        return BEGIN * max(self._load(sessions).drafting, 1)

    def takes_plain_step(self, sessions: int, lead: float) -> bool:
        """Whether the step to come is to be plain, to know what passes take by themselves; see `stepped`.

        `lead`: times as many tokens per second that drafting seems to give.
        """
        load = self._load(sessions)
        unsure = not load.line.known or (load.line.weight < FEW - 0.5 and lead < CLEAR)
        due = sessions > 1 and load.since >= (SOON if unsure else ANEW)
        if due:
            load.since = 0
        return due

    def rested(self, sessions: int) -> None:
        """Nobody asks for a tree in a step: what trees have cost is believed a little less, so that they are tried."""
        self.waits(sessions).ease()
        load = self._load(sessions)
        load.slowed = 1.0 + EASE * (load.slowed - 1.0)
        load.beside = 1.0 + EASE * (load.beside - 1.0)

    def stepped(self, sessions: int, tokens: int, seconds: float, *, asked: bool) -> None:
        """A step has ended; `asked` if trees were asked for.

        A drafter on the same cores slows the passes beside which it goes on with trees that were not waited for: what
        passes take by themselves is learned from the others. Beside a session alone nothing is left to draft: it waits
        for its whole tree.
        """
        self._extend(tokens)
        load, table_s = self._load(sessions), float(self._table[tokens])
        usual_s = float(load.line.at(table_s))
        if not asked or sessions == 1:
            load.line.learn(table_s, min(seconds, OUTLIER * usual_s or math.inf))
        elif usual_s > 0:
            load.slowed += SLOWED * (min(seconds / usual_s, OUTLIER) - load.slowed)

    def followed(self, sessions: int, tokens: int, seconds: float) -> None:
        """A step beside a tree that is only followed has ended."""
        load = self._load(sessions)
        usual_s = float(self.seconds(sessions, tokens)[tokens])
        if load.line.known and usual_s > 0:
            load.beside += SLOWED * (min(seconds / usual_s, OUTLIER) - load.beside)

    def follow_s(self, sessions: int) -> float:
        """Seconds that a plain step takes longer beside a tree that is only followed."""
        return (self._load(sessions).beside - 1.0) * self.plain_s(sessions)

    def plain_s(self, sessions: int) -> float:
        """Seconds of a plain step."""
        return float(self.seconds(sessions, sessions)[sessions])

    def affords(self, sessions: int) -> bool:
        """Whether drafting may be tried, or gone on with: it has not lost more than it may against plain decoding."""
        return self._load(sessions).allowance.left

    def accounted(self, sessions: int, emitted: int, seconds: float, *, tried: bool) -> None:
        """A step without prompts has ended, in which tokens were emitted; `seconds` with waits for trees.

        `tried` if it was with drafts or beside a tree that nobody waits for: such a step may lose against a plain one.
        """
        load = self._load(sessions)
        plain_s = self.plain_s(sessions) if load.line.known else 0.0
        if tried and plain_s > 0:
            load.allowance.tried(sessions, emitted, seconds, plain_s)
        else:
            load.allowance.stepped(sessions)

    def _load(self, sessions: int) -> _Load:
        return self._loads[sessions.bit_length()]

    def _extend(self, most: int) -> None:
        known = len(self._table)
        if most >= known:
            more = [self._costs.seconds(self._costs.padded(tokens)) or 0.0 for tokens in range(known, most + 1)]
            self._table = np.concatenate((self._table, more))
