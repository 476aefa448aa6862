"""How many draft nodes each session asks for, where the request leaves that to the server (`auto`).

The rule is tokens per second of all sessions. Every session's last trees are there, as they came, with the drafter's
probabilities at the trust that its calibration puts in them. For each size of tree it is asked what these would have
brought had so many nodes been asked for: the tokens of the nodes that the cut would have kept, the seconds by which
these would have lengthened the pass at the present load, and the wait for trees of that size, which is paid once for
all sessions. The best size is taken if it beats plain decoding; else the budget is 0: nobody waits, nobody verifies.
Each session then asks for no more nodes than have brought it anything.

A session at 0 asks for a tree now and then without waiting for it, and follows it along the tokens that come anyway;
where such trees would have paid, it drafts again. A wait that was too long is believed less the longer ago it was. A
tree is asked for at twice the size where no tree has lately told what more nodes would add.

Seconds of passes are those of the table of pass costs, brought to what steps at this load have taken lately.

Ranked and coupled trees give the tokens of plain decoding whatever their size. The size of a sampled tree must not
depend on anything drawn with the noise of a position it covers (THEORY 3, clauses 2 to 4): it depends on the scheduled
shape and on counts of tokens accepted in earlier rounds, which only siblings at positions that have been emitted
decide; never on the tokens, the rows or the nodes of a tree, and such trees are not followed. What steps take is part
of it, as it is part of every deadline. Sessions begin with what others were offered, but neither sampled nor nucleus
replies are part of that: trees of a later request must not know what the noise of an equal one had led to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.shape import DEEPEST, scheduled_shape
from paceline.speculation.tree import DraftTree
from paceline.target.calibration import Calibration
from paceline.target.fallback import Fallback
from paceline.target.grant import Grant
from paceline.target.line import Line
from paceline.target.offers import MOST_NODES, worth_of
from paceline.target.session import Session
from paceline.target.session_budget import Followed, Kind, Offered, SessionBudget
from paceline.target.turn import Step, Turn
from paceline.target.worth import path_probs

SIZES = np.asarray((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_NODES))  # sizes that are chosen among
USUAL = 8  # nodes where nothing is known yet
PROBE = 4  # nodes of a tree that is only followed, or tried after a pause
LEAST = 0.01  # tokens a round that a session's trees must add, and that a larger one must add to a smaller one
PRICES = np.asarray((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0))  # of time that are tried, in tokens of plain decoding
SLACK = 0.01  # share of tokens per second by which drafting must be better than none, and may be worse than its best
PLAN_EVERY = 8  # steps for which a plan is kept
EARLY = 6  # rounds of a session in which it is made anew in every step
FADED = 0.2  # trees, by weight, below which a size is no longer known
EASE = 0.995  # of the wait for trees, per step in which nobody drafts
OUTLIER = 2.0  # times what was expected: a step that took longer was held up by something else
_LEARNT = (None, Fallback.LATE, Fallback.LOAD)  # fallbacks that say something of the trees


@dataclass(frozen=True, slots=True)
class Load:
    """What the sessions' choices share."""

    now: float  # seconds on the engine's clock
    sessions: int  # that decode: a plain token each in the next pass
    reading: int  # prompt tokens in it
    most: int  # draft nodes that a session may have


@dataclass(frozen=True, slots=True)
class _Began:
    magnitude: int  # of the load
    at: float  # seconds on the engine's clock
    levels: float  # expected of the trees


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    gain: NDArray[np.float64]  # [S, sizes] tokens a round beyond their price, of sizes up to the one that is best
    pays: bool  # whether waiting for trees pays
    wait_s: float
    rate: float  # tokens per second of all sessions


class Budgets:
    """Chooses the sizes, and learns what they led to. Compute thread only."""

    def __init__(self, costs: PassCosts, *, cuts: bool) -> None:
        """`cuts`: whether trees are cut to what pays before they are verified."""
        self._costs, self._cuts = costs, cuts
        self._seconds = np.zeros(0)  # [tokens + 1] of a pass as it is run, by the table
        self._passes: dict[int, Line] = {}  # seconds of a step by the table's, by magnitude of load
        self._waits: dict[int, Line] = {}  # seconds waited by levels of the deepest tree, by magnitude of load
        self._kinds: dict[tuple[Proposal, bool], Kind] = {}
        self._ease: dict[int, float] = {}  # share of the wait that is believed, by magnitude of load
        self._steps = 0
        self._kept: _Plan | None = None
        self._plan_key: tuple[object, ...] = ()  # what the kept plan was made for
        self._plan_until = 0  # the step it is kept to
        self._levels = 1.0  # that trees were expected to have when they were asked for last
        self._began: _Began | None = None  # a round in which trees are waited for

    # -- choosing -----------------------------------------------------------------------------------------------------

    def begin(self, sessions: Sequence[Session], load: Load) -> None:
        """Grants each of these sessions, which begin a round, its nodes."""
        self._began = None
        auto = [each for each in sessions if each.request.wish.auto and each.rounds > 0]
        for session in sessions:
            wish = session.request.wish
            session.grant = Grant(0 if wish.auto or session.rounds == 0 else wish.budget)
        if not auto:
            return
        self._steps += 1
        if load.most == 0:
            for session in auto:
                session.grant = Grant(0, "no room in the pass for draft nodes")
        elif self._costs.seconds(1) is None:
            for session in auto:
                session.grant = Grant(min(USUAL, load.most, session.request.wish.budget), "passes are not measured")
        else:
            self._choose(auto, load)
        magnitude = _magnitude(load.sessions)
        if any(each.grant.nodes for each in sessions):
            self._began = _Began(magnitude, load.now, self._levels)
        elif load.most:
            self._ease[magnitude] = EASE * self._ease.get(magnitude, 1.0)

    def _choose(self, sessions: Sequence[Session], load: Load) -> None:
        budgets = [self._of(each) for each in sessions]
        sizes = SIZES[min(load.most, *(each.request.wish.budget for each in sessions)) >= SIZES]
        plan = self._kept_plan(sessions, budgets, load, sizes)
        told = f"{load.sessions} sessions, {plan.wait_s * 1e3:.1f} ms for trees, {plan.rate:.1f} tokens/s"
        for session, budget, gain in zip(sessions, budgets, plan.gain, strict=True):
            reason = f"adds {gain[-1]:.2f} tokens; {told}"
            if not budget.offers.known:
                session.grant = Grant(min(USUAL, int(sizes[-1])), "no tree was seen yet")
            elif plan.pays and gain[-1] >= LEAST:
                budget.drafts()
                session.grant = _sized(budget, int(np.argmax(gain >= gain[-1] - LEAST)), sizes, reason)
            else:
                session.grant = self._rests(session, budget, int(sizes[-1]), f"too little: {reason}")

    def _kept_plan(
        self, sessions: Sequence[Session], budgets: Sequence[SessionBudget], load: Load, sizes: NDArray[np.int64]
    ) -> _Plan:
        """A plan of a few steps ago, where nothing has changed that would change it at once."""
        key = (tuple(id(each) for each in budgets), load.sessions, load.most, load.reading > 0)
        fresh = self._plan_key == key and self._steps < self._plan_until
        if self._kept is None or not fresh or min(each.rounds for each in sessions) <= EARLY:
            self._kept, self._plan_key = self._plan(sessions, budgets, load, sizes), key
            self._plan_until = self._steps + PLAN_EVERY
        return self._kept

    def _plan(
        self, sessions: Sequence[Session], budgets: Sequence[SessionBudget], load: Load, sizes: NDArray[np.int64]
    ) -> _Plan:
        """The price of time and the largest size asked for that give most tokens per second."""
        longest = max(each.offers.longest for each in budgets)
        sizes = sizes[: max(int(np.searchsorted(sizes, longest, side="right")), 1)]  # larger ones add nothing
        most, count = int(sizes[-1]), load.sessions
        plain_tokens = count + load.reading
        seconds = self.seconds(count, plain_tokens + most * count)
        row_s = float(seconds[1])
        rows = sum(_overlaps(each) for each in sessions)  # rounds of two passes, each with a token of its own
        levels = np.max([each.offers.levels_of(sizes) for each in budgets], axis=0)  # [sizes]
        wait_s = self._exposed(sessions, load, levels, row_s)
        alike_s = (seconds[count + count * np.arange(1, most + 1)] - seconds[count]) / count  # a node for everybody
        price = np.outer(PRICES * count / seconds[count], alike_s)
        trust = np.asarray([each.calibration.factor for each in sessions])
        offers = [each.offers for each in budgets]
        worth = worth_of(offers, trust, price, sizes, seconds, plain_tokens, cuts=self._cuts)
        plain_s = float(seconds[plain_tokens])
        rates = (count + rows + worth.tokens.sum(axis=1)) / (
            plain_s + rows * row_s + worth.seconds.sum(axis=1) + wait_s
        )  # [prices, sizes]
        at, best = (int(each) for each in np.unravel_index(np.argmax(rates), rates.shape))
        best = int(np.argmax(rates[at] >= (1 - SLACK) * rates[at, best]))
        pays = bool(rates[at, best] >= (1 + SLACK) * count / plain_s)
        self._levels = float(levels[best])
        return _Plan(worth.gain[at, :, : best + 1], pays, float(wait_s[best]), float(rates[at, best]))

    def _exposed(
        self, sessions: Sequence[Session], load: Load, levels: NDArray[np.float64], row_s: float
    ) -> NDArray[np.float64]:
        """Seconds that all wait for trees of so many levels; nothing where nobody would wait."""
        waiting = [each for each in sessions if not each.drafting.suspended and not _never_waits(each, load)]
        if not waiting:
            return np.zeros(len(levels))
        if all(_overlaps(each) for each in waiting):
            longest = max((each.pace.draft_s or 0.0) for each in waiting)
            return np.full(len(levels), max(longest - row_s, 0.0))
        magnitude = _magnitude(load.sessions)
        line = self._waits.get(magnitude)
        return np.zeros(len(levels)) if line is None else self._ease.get(magnitude, 1.0) * line.at(levels)

    def _rests(self, session: Session, budget: SessionBudget, most: int, reason: str) -> Grant:
        """Pauses are powers of two of the common count of steps, so that sessions ask together."""
        if self._steps % budget.pause or budget.followed is not None:
            return Grant(0, reason)
        budget.rested()
        nodes = min(PROBE, most)
        if session.request.wish.sampled:
            return Grant(nodes, f"a try after a pause; {reason}")
        budget.followed = Followed(len(session.context), nodes)
        return Grant(0, f"one of {nodes} nodes is followed, not waited for; {reason}", probe=nodes)

    # -- learning -----------------------------------------------------------------------------------------------------

    def offered(self, turns: Sequence[Turn], now: float) -> None:
        """Notes the trees of these turns before they are cut; a pass of them begins `now`."""
        began, self._began = self._began, None
        if began is not None and all(turn.step is Step.VERIFY and not turn.reads for turn in turns):
            drawn = any(turn.session.request.wish.sampled for turn in turns)  # their depth depends on what was drawn
            depths = [int(turn.tree.depths.max()) for turn in turns if len(turn.tree)]
            came = all(turn.fallback is None for turn in turns)
            levels = began.levels if drawn or not (depths or came) else max(depths, default=0)
            self._waits.setdefault(began.magnitude, Line()).learn(levels, max(now - began.at, 0.0))
            self._ease[began.magnitude] = 1.0
        for turn in turns:
            session, state = turn.session, turn.session.round
            if session.budget is not None and turn.step is Step.VERIFY:
                whole = session.drafting.fresh(len(session.context)) is not None and not (state and state.focused)
                session.budget.offered = Offered(path_probs(turn.tree), turn.tree.depths, whole)

    def stepped(self, turns: Sequence[Turn], seconds: float) -> None:
        """A step of these turns, as they were run, has ended; it took so many seconds."""
        if any(turn.reads for turn in turns) or self._costs.seconds(1) is None:
            return
        tokens = sum(turn.tokens for turn in turns)
        self._extend(tokens)
        line, table_s = self._passes.setdefault(_magnitude(len(turns)), Line()), float(self._seconds[tokens])
        most_s = OUTLIER * float(line.at(table_s)) if line.known else math.inf
        line.learn(table_s, min(seconds, most_s))

    def arrived(self, session: Session, tree: DraftTree, base_length: int) -> None:
        """A tree has come; it is followed if it was asked for to that end."""
        followed = None if session.budget is None else session.budget.followed
        if followed is not None and followed.base_length == base_length:
            followed.tree = tree

    def settled(self, turn: Turn, accepted: int) -> None:
        """A round has ended with this turn; the context has moved on."""
        session, budget, nodes = turn.session, turn.session.budget, turn.session.grant.nodes
        if budget is None or turn.step is not Step.VERIFY:
            return
        offered, budget.offered = budget.offered, None
        budget.offers.age()
        self._follow(session, budget)
        if not nodes or offered is None or turn.fallback not in _LEARNT:
            return
        if session.request.wish.sampled:  # by the shape, whatever was drawn
            shape = scheduled_shape(nodes if len(turn.tree) else 0, DEEPEST)
            probs = path_probs(shape)
            self._learn(session, budget, float(probs.sum()), accepted)
            budget.learn(Offered(probs, shape.depths, whole=False), nodes)
            return
        self._learn(session, budget, float(path_probs(turn.tree).sum()), accepted)
        budget.learn(offered, nodes)

    def _follow(self, session: Session, budget: SessionBudget) -> None:
        """Takes the tree that is followed in, once the tokens emitted since have left it."""
        followed = budget.followed
        if followed is None:
            return
        matched = followed.matched(session.context)
        if matched is not None and followed.tree is not None:
            probs = path_probs(followed.tree)
            self._learn(session, budget, float(probs.sum()), matched)
            budget.learn(Offered(probs, followed.tree.depths, whole=False), followed.nodes)
            budget.looked(right=matched > 0)
        elif len(session.context) - followed.base_length > MOST_NODES:
            budget.followed = None  # it never came

    @staticmethod
    def _learn(session: Session, budget: SessionBudget, promised: float, accepted: int) -> None:
        session.calibration.learn(promised, accepted)
        if budget.kind is not None:
            budget.kind.calibration.learn(promised, accepted)

    # -- what is known ------------------------------------------------------------------------------------------------

    def seconds(self, sessions: int, most: int) -> NDArray[np.float64]:
        """[at least most + 1] seconds of a step by its tokens, with so many sessions in it."""
        self._extend(most)
        line = self._passes.get(_magnitude(sessions))
        return self._seconds if line is None else line.at(self._seconds)

    def _extend(self, most: int) -> None:
        known = len(self._seconds)
        if most >= known:
            more = [self._costs.seconds(self._costs.padded(tokens)) or 0.0 for tokens in range(known, most + 1)]
            self._seconds = np.concatenate((self._seconds, more))

    def _of(self, session: Session) -> SessionBudget:
        if session.budget is None:
            wish, nucleus = session.request.wish, session.request.nucleus is not None
            kind = self._kinds.setdefault((wish.proposal, session.request.sampling.greedy), Kind())
            session.budget = SessionBudget(None if nucleus or wish.sampled else kind, kind.offers.copy())
            session.calibration = Calibration(kind.calibration.factor)
        return session.budget


def _sized(budget: SessionBudget, at: int, sizes: NDArray[np.int64], reason: str) -> Grant:
    """That size, or one about twice as large where no tree has lately told what more nodes would add."""
    size, wider = int(sizes[at]), int(sizes[min(int(np.searchsorted(sizes, 2 * sizes[at])), len(sizes) - 1)])
    if wider > size and budget.offers.known_of(sizes[at + 1 : at + 2]).sum() < FADED:
        return Grant(wider, f"{wider} in place of {size}, to see what they add; {reason}")
    return Grant(size, reason)


def _magnitude(sessions: int) -> int:
    return sessions.bit_length()


def _overlaps(session: Session) -> bool:
    """True if a row pass runs while its tree is drafted."""
    wish = session.request.wish
    rule = session.pace.rule if wish.selection is Selection.AUTO else wish.selection
    return rule in (Selection.DRAW_FIRST, Selection.RERANK)


def _never_waits(session: Session, load: Load) -> bool:
    return session.request.wish.wait is WaitFor.NEVER and load.sessions == 1
