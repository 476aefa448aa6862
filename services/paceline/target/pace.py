"""What each selection rule has given a session lately, and which one promises most tokens per second (THEORY 5, cost).

A rule that was tried is known by its tokens and its seconds; one that was not, by the formula: a round of `draft` takes
drafting and verification one after the other, a round of `draw_first` overlaps drafting with the row pass. `rerank`
costs what `draw_first` costs and accepts less, `retain` gives a token away each round: neither is ever taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.runtime.costs import PassCosts
from paceline.speculation.modes import Selection

MEMORY = 0.9  # weight that the past keeps per round of the same rule
FADE = 0.98  # and per round of another one, so that what was once bad is tried again
PRIOR_ROUNDS = 2.0  # weight of the formula, in rounds
QUICK = 0.2  # of a row pass: drafting that takes less is repeated below a drawn token
MARGIN = 1.05  # how much better another rule must promise to be before it is taken


@dataclass(slots=True)
class _Sums:
    rounds: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """A rule and why."""

    rule: Selection
    reason: str


class Pace:
    """Tokens and seconds of a session's rounds by rule. Compute thread only."""

    __slots__ = ("_accepted", "_accepted_rounds", "_draft_s", "_drafts", "_now", "_sums")

    def __init__(self) -> None:
        self._sums = {rule: _Sums() for rule in (Selection.DRAFT, Selection.DRAW_FIRST)}
        self._accepted = 1.0  # below the root of a tree, over rounds of any rule
        self._accepted_rounds = 1.0
        self._draft_s = 0.0
        self._drafts = 0.0
        self._now = Selection.DRAFT  # the rule taken last

    def learn(self, rule: Selection, tokens: int, accepted: int | None, seconds: float) -> None:
        """Takes in a round for which a tree was wanted; `accepted` is None if none came."""
        for each, sums in self._sums.items():
            keep = MEMORY if each is rule else FADE
            sums.rounds, sums.tokens, sums.seconds = sums.rounds * keep, sums.tokens * keep, sums.seconds * keep
        if rule in self._sums:
            mine = self._sums[rule]
            mine.rounds, mine.tokens, mine.seconds = mine.rounds + 1, mine.tokens + tokens, mine.seconds + seconds
        if accepted is not None:
            self._accepted = MEMORY * self._accepted + accepted
            self._accepted_rounds = MEMORY * self._accepted_rounds + 1

    def slow(self, costs: PassCosts) -> bool:
        """True if drafting takes so long beside a pass that a second wait for it costs more than it brings."""
        row_s = costs.seconds(1)
        return row_s is not None and self._drafts > 0 and self._draft_s / self._drafts > QUICK * row_s

    @property
    def rule(self) -> Selection:
        """The rule chosen last."""
        return self._now

    @property
    def draft_s(self) -> float | None:
        """Mean seconds from asking for a tree to its arrival; None if none has come."""
        return self._draft_s / self._drafts if self._drafts else None

    def drafted(self, seconds: float) -> None:
        """Takes in the time from asking for a tree to its arrival."""
        self._draft_s, self._drafts = MEMORY * self._draft_s + seconds, MEMORY * self._drafts + 1

    def choose(self, costs: PassCosts, budget: int, *, loaded: bool) -> Chosen:
        """The rule for the next round.

        Args:
            costs: measured seconds of passes by their tokens.
            budget: nodes of a tree.
            loaded: whether other sessions fill the time in which this one's target would idle.
        """
        row_s, verify_s = costs.seconds(1), costs.seconds(1 + budget)
        if loaded:
            return Chosen(Selection.DRAFT, "other sessions fill the time of a row pass")
        if not self._drafts or row_s is None or verify_s is None:
            return Chosen(Selection.DRAFT, "drafting or passes are not measured yet")
        accepted, draft_s = self._accepted / self._accepted_rounds, self._draft_s / self._drafts
        rates = {
            Selection.DRAFT: self._rate(Selection.DRAFT, accepted + 1, draft_s + verify_s),
            Selection.DRAW_FIRST: self._rate(Selection.DRAW_FIRST, accepted + 2, max(draft_s, row_s) + verify_s),
        }
        best = max(rates, key=lambda rule: rates[rule])
        if rates[best] < MARGIN * rates[self._now]:
            best = self._now
        self._now = best
        shown = ", ".join(f"{rule} {rate:.1f}" for rule, rate in rates.items())
        return Chosen(best, f"expected tokens/s: {shown}; drafting {draft_s * 1e3:.1f} ms, row {row_s * 1e3:.1f} ms")

    def _rate(self, rule: Selection, tokens: float, seconds: float) -> float:
        sums = self._sums[rule]
        return (sums.tokens + PRIOR_ROUNDS * tokens) / (sums.seconds + PRIOR_ROUNDS * seconds)
