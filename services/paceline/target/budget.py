"""How many draft nodes each session asks for, where the request leaves that to the server (`auto`).

A tree is worth asking for if the tokens it adds are worth more than the time it takes. Time has a price, the tokens per
second that the best choice gives at the present load. Of every session's last trees, as they came and at the trust its
calibration puts in them, it is asked what each size would have added: the tokens of the nodes that the cut would have
kept, less the price of the seconds by which these lengthen the pass. Waiting for trees is paid once for all sessions.
The size with the largest sum is taken, 0 among them: then nobody waits and nobody verifies.

A session at 0 asks for a tree now and then, at growing distances, without waiting for it, and follows it along the
tokens that come anyway; where it would have paid, the session drafts again. What was once dear to wait for fades.
Of every few trees one is asked for at twice the size, as is the next after one that was accepted to its end.

Seconds of passes are those of the table of pass costs, brought to what steps at this load have taken lately.

Ranked and coupled trees give the tokens of plain decoding whatever their size. The size of a sampled tree must not
depend on anything drawn with the noise of a position it covers (THEORY 3, clauses 2 to 4): it depends on the scheduled
shape and on counts of tokens accepted in earlier rounds, which only siblings at positions that have been emitted
decide; never on the tokens, the rows or the number of nodes of a tree, and such trees are not followed. Sessions begin
with what others were offered, but neither sampled nor nucleus replies are part of that: trees of a later request must
not know what the noise of an equal one had led to.
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
from paceline.target.offers import MOST_NODES
from paceline.target.session import Session
from paceline.target.session_budget import Followed, Kind, Offered, SessionBudget
from paceline.target.turn import Step, Turn
from paceline.target.worth import path_probs

RUNGS = np.asarray((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_NODES))  # sizes that are chosen among
USUAL = 8  # nodes where nothing is known yet
STRETCH_EVERY = 8  # of so many trees one is asked for at twice the size
LEAST = 0.01  # tokens a round that drafting must add per session, and that a larger tree must add to a smaller one
EASE = 0.99  # of the wait for trees, per step in which nobody drafts
OUTLIER = 2.0  # times what was expected: a step that took longer was held up by something else
_LEARNT = (None, Fallback.LATE, Fallback.LOAD)  # fallbacks that say something of the trees
_LEVELS = np.log2(1.0 + RUNGS)  # about the levels of a tree of so many nodes


@dataclass(frozen=True, slots=True)
class Load:
    """What the sessions' choices share."""

    now: float  # seconds on the engine's clock
    sessions: int  # that decode: a plain token each in the next pass
    reading: int  # prompt tokens in it
    most: int  # draft nodes that a session may have


class Budgets:
    """Chooses the sizes, and learns what they led to. Compute thread only."""

    def __init__(self, costs: PassCosts, *, cuts: bool) -> None:
        """`cuts`: whether trees are cut to what pays before they are verified."""
        self._costs, self._cuts = costs, cuts
        self._seconds = np.zeros(0)  # [tokens + 1] of a pass as it is run, by the table
        self._passes: dict[int, Line] = {}  # seconds of a step by the table's, by magnitude of load
        self._waits: dict[int, Line] = {}  # seconds waited by levels asked for
        self._kinds: dict[tuple[Proposal, bool], Kind] = {}
        self._speed = 1.0  # tokens per second of the best choice, over those of plain decoding
        self._steps = 0
        self._waited_for: tuple[int, int, float] | None = None  # load, nodes, since when

    # -- choosing -----------------------------------------------------------------------------------------------------

    def begin(self, sessions: Sequence[Session], load: Load) -> None:
        """Grants each of these sessions, which begin a round, its nodes."""
        self._waited_for = None
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
        nodes = max(each.grant.nodes for each in sessions)
        if nodes:
            self._waited_for = (_magnitude(load.sessions), nodes, load.now)
        elif load.most:
            self._wait(load.sessions).ease(EASE)

    def _choose(self, sessions: Sequence[Session], load: Load) -> None:
        budgets = [self._of(each) for each in sessions]
        rungs = RUNGS[min(load.most, *(each.request.wish.budget for each in sessions)) >= RUNGS]
        most = int(rungs[-1])
        seconds = self.seconds(load.sessions, load.sessions + load.reading + most * len(sessions))
        plain_s = float(seconds[load.sessions])
        rate = self._speed * load.sessions / plain_s
        others = sum(each.verified for each in budgets) - np.asarray([each.verified for each in budgets])
        base = np.minimum(load.sessions + load.reading + others, len(seconds) - 1 - most)  # [S] tokens
        longer_s = seconds[base[:, None] + np.arange(1, most + 1)] - seconds[base, None]  # [S, most]
        worth = self._worth(sessions, budgets, rate * longer_s, rungs)  # [S, rungs]
        wait_s = self._exposed(sessions, load, float(seconds[1]))[: len(rungs)]
        drafting = sum(_overlaps(each) for each in sessions)  # rounds of two passes, each with a token of its own
        total = worth.sum(axis=0) - rate * wait_s + drafting * (1 - rate * float(seconds[1]))
        enough = LEAST * len(sessions)
        best = int(np.argmax(total >= total.max() - enough))
        pays = float(total.max()) >= enough
        self._improve(len(sessions), load, plain_s, float(total[best]) if pays else 0.0, wait_s[best] if pays else 0.0)
        told = f"{load.sessions} sessions, {wait_s[best] * 1e3:.1f} ms for trees, {rate:.1f} tokens/s"
        for session, budget, mine in zip(sessions, budgets, worth, strict=True):
            if not budget.offers.known:
                session.grant = Grant(min(USUAL, most), "no tree was seen yet")
            elif pays and mine[best] >= LEAST:
                size = int(rungs[int(np.argmax(mine >= mine[best] - LEAST))])
                session.grant = self._drafts(session, budget, size, rungs, f"adds {mine[best]:.2f} tokens; {told}")
            else:
                session.grant = self._rests(session, budget, most, f"adds {mine[best]:.2f} tokens, too few; {told}")

    def _worth(
        self,
        sessions: Sequence[Session],
        budgets: Sequence[SessionBudget],
        price: NDArray[np.float64],
        rungs: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Tokens a round that trees of each size have been worth beyond their place in the pass.

        Args:
            sessions: S of them.
            budgets: theirs.
            price: [S, N] tokens that the leading nodes of a tree cost.
            rungs: [R] sizes, the largest one N.

        Returns:
            [S, R], rising along R. A size is known from trees of that size or more; what larger ones give is taken
            for nothing before one was asked for.
        """
        most = price.shape[1]
        probs = np.stack([each.offers.probs[:, :most] for each in budgets])  # [S, T, N]
        trust = np.asarray([each.calibration.factor for each in sessions])
        gain = np.minimum(probs * trust[:, None, None], 1.0).cumsum(axis=2) - price[:, None, :]
        if self._cuts:
            gain = np.maximum(np.maximum.accumulate(gain, axis=2), 0.0)
        gain = gain[:, :, rungs - 1]
        added = np.diff(gain, axis=2, prepend=0.0)  # [S, T, R]
        asked = np.stack([each.offers.asked for each in budgets])
        weights = np.stack([each.offers.weights for each in budgets])[:, :, None] * (asked[:, :, None] >= rungs)
        means = (added * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
        return np.maximum.accumulate(np.maximum(means.cumsum(axis=1), 0.0), axis=1)

    def _exposed(self, sessions: Sequence[Session], load: Load, row_s: float) -> NDArray[np.float64]:
        """Seconds that all wait for trees, by size; nothing where nobody would wait."""
        waiting = [each for each in sessions if not each.drafting.suspended and not _never_waits(each, load)]
        if not waiting:
            return np.zeros(len(RUNGS))
        if all(_overlaps(each) for each in waiting):
            longest = max((each.pace.draft_s or 0.0) for each in waiting)
            return np.full(len(RUNGS), max(longest - row_s, 0.0))
        return self._wait(load.sessions).at(_LEVELS)

    def _drafts(
        self, session: Session, budget: SessionBudget, size: int, rungs: NDArray[np.int64], reason: str
    ) -> Grant:
        budget.drafts()
        if budget.stretch or budget.asked % STRETCH_EVERY == 0:
            wider = int(rungs[min(int(np.searchsorted(rungs, 2 * size)), len(rungs) - 1)])
            if wider > size:
                return Grant(wider, f"{wider} in place of {size}, to see what they add; {reason}")
        return Grant(size, reason)

    def _rests(self, session: Session, budget: SessionBudget, most: int, reason: str) -> Grant:
        """Pauses are powers of two of the common count of steps, so that sessions ask together."""
        if self._steps % budget.pause or budget.followed is not None:
            return Grant(0, reason)
        budget.rested()
        nodes = min(USUAL, most)
        if session.request.wish.sampled:
            return Grant(nodes, f"a try after a pause; {reason}")
        budget.followed = Followed(len(session.context), nodes)
        return Grant(0, f"one of {nodes} nodes is followed, not waited for; {reason}", probe=nodes)

    def _improve(self, sessions: int, load: Load, plain_s: float, added: float, wait_s: float) -> None:
        """One step of Newton's method towards the rate at which the best choice is worth just its time."""
        if sessions < load.sessions:
            return  # the others' rounds are under way
        rate = self._speed * sessions / plain_s
        rest = sessions + added - rate * plain_s
        self._speed = max(1.0, self._speed + rest / (plain_s + wait_s) * plain_s / sessions)

    # -- learning -----------------------------------------------------------------------------------------------------

    def stepped(self, turns: Sequence[Turn], started_at: float, ended_at: float) -> None:
        """A step of these turns, as they were run, has ended."""
        if any(turn.reads for turn in turns) or self._costs.seconds(1) is None:
            return
        tokens = sum(turn.tokens for turn in turns)
        self._extend(tokens)
        line, table_s = self._passes.setdefault(_magnitude(len(turns)), Line()), float(self._seconds[tokens])
        most_s = OUTLIER * float(line.at(table_s)) if line.known else math.inf
        line.learn(table_s, min(ended_at - started_at, most_s))
        waited, self._waited_for = self._waited_for, None
        if waited is not None and all(turn.step is Step.VERIFY for turn in turns):
            load, nodes, since = waited
            self._waits.setdefault(load, Line()).learn(float(np.log2(1 + nodes)), max(started_at - since, 0.0))

    def offered(self, turns: Sequence[Turn]) -> None:
        """Notes the trees of these turns before they are cut."""
        for turn in turns:
            session = turn.session
            if session.budget is None or turn.step is not Step.VERIFY:
                continue
            state = session.round
            whole = session.drafting.fresh(len(session.context)) is not None and not (state and state.focused)
            session.budget.offered = Offered(path_probs(turn.tree), whole)

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
        budget.verified, budget.stretch = len(turn.tree), False
        budget.offers.age()
        self._follow(session, budget)
        if not nodes or offered is None or turn.fallback not in _LEARNT:
            return
        if session.request.wish.sampled:  # by the shape, whatever was drawn
            probs = path_probs(scheduled_shape(nodes if len(turn.tree) else 0, DEEPEST))
            self._learn(session, budget, float(probs.sum()), accepted)
            budget.learn(probs, nodes, whole=False)
            return
        full = len(turn.tree) == len(offered.probs) == nodes
        budget.stretch = full and accepted == int(turn.tree.depths.max())
        self._learn(session, budget, float(path_probs(turn.tree).sum()), accepted)
        budget.learn(offered.probs, nodes, whole=offered.whole)

    def _follow(self, session: Session, budget: SessionBudget) -> None:
        """Takes the tree that is followed in, once the tokens emitted since have left it."""
        followed = budget.followed
        if followed is None:
            return
        matched = followed.matched(session.context)
        if matched is not None and followed.tree is not None:
            probs = path_probs(followed.tree)
            self._learn(session, budget, float(probs.sum()), matched)
            budget.learn(probs, followed.nodes, whole=False)
            budget.followed = None
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

    def _wait(self, sessions: int) -> Line:
        return self._waits.get(_magnitude(sessions)) or Line()

    def _of(self, session: Session) -> SessionBudget:
        if session.budget is None:
            wish, nucleus = session.request.wish, session.request.nucleus is not None
            kind = self._kinds.setdefault((wish.proposal, session.request.sampling.greedy), Kind())
            session.budget = SessionBudget(None if nucleus or wish.sampled else kind, kind.offers.copy())
            session.calibration = Calibration(kind.calibration.factor)
        return session.budget


def _magnitude(sessions: int) -> int:
    return sessions.bit_length()


def _overlaps(session: Session) -> bool:
    """True if a row pass runs while its tree is drafted."""
    wish = session.request.wish
    rule = session.pace.rule if wish.selection is Selection.AUTO else wish.selection
    return rule in (Selection.DRAW_FIRST, Selection.RERANK)


def _never_waits(session: Session, load: Load) -> bool:
    return session.request.wish.wait is WaitFor.NEVER and load.sessions == 1
