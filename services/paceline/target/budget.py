"""How many draft nodes each session asks for, where the request leaves that to the server (`auto`).

The rule is tokens per second of all sessions. For each size of tree it is known what trees of that size have promised
each session lately, and how much of it was kept (`Gains`), how long a pass has waited for them, and what a pass with
their nodes takes: the table of pass costs, brought to what steps at this load have taken (`LoadTimes`). The size with
most tokens per second is asked for by the sessions that gain by it (`best_plan`); if plain decoding is as quick the
budget is 0: nobody waits, nobody verifies.

Of the sessions at 0 one is tried now and then: it asks for a tree without waiting for it, and follows it along the
tokens that come anyway, or waits where that takes less; where such trees would have paid, it drafts again. What is not
known is hoped for, so that it is tried.

Guesses err, and a drafter on the target's cores takes more than is seen in a wait: what steps with drafts or beside
such trees have lost against plain ones is counted, and may be a small share (`Allowance`). Beyond it there is nothing
but plain decoding for a while. Sampled and nucleus sessions are left out of it.

Where hardly anybody drafts the drafter does not hear of new sessions, whose prompts it would read for nothing on cores
that the target may share. Where drafting is well ahead after all, it reads them one by one, and the first tree of each
is followed too.

Ranked and coupled trees give the tokens of plain decoding whatever their size. The size of a sampled tree must not
depend on anything drawn with the noise of a position it covers (THEORY 3, clauses 2 to 4): it depends on the scheduled
shape and on counts of tokens accepted in earlier rounds, which only siblings at positions that have been emitted
decide; never on the tokens, the rows or the nodes of a tree, and such trees are not followed. What steps take is part
of it, as it is part of every deadline. Sessions begin with what others of their kind have gained, but sampled and
nucleus ones begin with nothing: their trees must not know what the noise of an earlier, equal request had led to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.speculation.modes import Proposal
from paceline.speculation.shape import DEEPEST, scheduled_shape
from paceline.speculation.tree import DraftTree
from paceline.target.calibration import Calibration
from paceline.target.fallback import Fallback
from paceline.target.gains import MOST_NODES, SIZES
from paceline.target.grant import Grant
from paceline.target.load_times import LoadTimes
from paceline.target.plan import Load, Plan, best_plan
from paceline.target.session import Session
from paceline.target.session_budget import FIRST_PAUSE, Kind, Offered, SessionBudget
from paceline.target.turn import Step, Turn
from paceline.target.worth import path_probs

USUAL = 8  # nodes at most where no tree was seen yet, or passes are not measured
TRYING = 0.03  # share of a plain step that trees may take, in the mean, which are tried while plain decoding pays more
READING = 0.1  # share by which drafting must be better than none for sessions whose prompts the drafter is yet to read
PROBE = 8  # nodes of a tree that is only followed
AT_REST = 4  # sessions at rest; pauses between tries are longer by as many times as there are more
_LEARNT = (None, Fallback.LATE, Fallback.LOAD)  # fallbacks that say something of the trees


@dataclass(frozen=True, slots=True)
class _Began:
    sessions: int  # of the load
    at: float  # seconds on the engine's clock
    nodes: int  # asked for at most


@dataclass(slots=True)
class _Pass:
    """The one that is under way, or was last."""

    waited_s: float = 0.0  # for trees, before it
    reads: bool = False  # whether a drafter may have read a prompt meanwhile
    emitted: int = 0  # tokens, by it


class Budgets:
    """Chooses the sizes, and learns what they led to. Compute thread only."""

    def __init__(self, costs: PassCosts) -> None:
        """`costs`: seconds of passes by their tokens."""
        self._costs = costs
        self.times = LoadTimes(costs)
        self._kinds: dict[tuple[Proposal, bool, bool], Kind] = {}  # by proposal, greedy, nucleus
        self._steps = self._tries = 0
        self._began: _Began | None = None  # a round in which trees are waited for
        self._pass = _Pass()

    # -- choosing -----------------------------------------------------------------------------------------------------

    def begin(self, sessions: Sequence[Session], load: Load) -> None:
        """Grants each of these sessions, which begin a round, its nodes."""
        self._began = None
        auto = [each for each in sessions if each.request.wish.auto and each.rounds > 0]
        soon = load.sessions + sum(each.rounds == 0 for each in sessions)  # that decode
        rests = self.times.seldom(soon) or not self.times.affords(soon)
        for session in sessions:
            wish = session.request.wish
            nodes = 0 if wish.auto or session.rounds == 0 else wish.budget
            session.grant = Grant(nodes, opens=not (wish.auto and rests and session.request.shares_outcome))
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
            self._began = _Began(load.sessions, load.now, nodes)
        elif load.most:
            self.times.rested(load.sessions)

    def _choose(self, sessions: Sequence[Session], load: Load) -> None:
        budgets = [self._of(each) for each in sessions]
        most = min(load.most, *(each.request.wish.budget for each in sessions))
        tried = max(USUAL, *(2 * each.largest for each in budgets))  # so that a guess is never far from what is known
        sizes = SIZES[min(most, tried) >= SIZES]
        shared = all(each.shares for each in budgets)  # else sizes must not know who drafted before
        few = self.times.most_drafting(load.sessions) if shared else len(sessions)
        plan = best_plan(sessions, budgets, load, self.times, sizes, few)
        if shared and self.times.takes_plain_step(load.sessions, plan.lead):
            for session in sessions:
                session.grant = Grant(0, f"a plain step, to see what it takes; {plan.told}", opens=False)
            return
        affords, looking = self.times.affords(load.sessions), False
        read = np.asarray([not (each.drafting.unheard and each.request.shares_outcome) for each in sessions])
        drafting = plan.drafts & (read | (plan.lead >= 1 + READING))
        self.times.planned(load.sessions, drafting=int(drafting.sum()) if affords else 0)
        wider = int(sizes[sizes <= 2 * plan.nodes][-1])
        resting: list[tuple[Session, SessionBudget]] = []
        reads = any(_is_read(*each) for each in zip(sessions, budgets, strict=True))
        for session, budget, drafts in zip(sessions, budgets, drafting.tolist(), strict=True):
            if not affords and budget.shares:
                told = f"drafting has lost as much as it may against plain decoding; {plan.told}"
                session.grant = Grant(0, told, opens=False)
            elif not drafts:
                session.grant = Grant(0, plan.told, opens=not budget.shares)
                resting.append((session, budget))
            elif session.drafting.unheard and budget.shares and reads:
                session.grant = Grant(0, f"the drafter reads another prompt; {plan.told}", opens=False)
            elif (session.drafting.unheard and budget.shares) or _is_read(session, budget):
                budget.unread = reads = True
                self._follow_next(session, budget, min(PROBE, most), "the drafter reads the prompt")
            else:
                budget.drafts(may_look=not (looking and budget.shares))
                looking = looking or budget.looks
                told = f"{wider}, to see what more bring; {plan.told}" if budget.looks else plan.told
                session.grant = Grant(wider if budget.looks else plan.nodes, told)
        if resting:
            self._try(resting, load, plan)

    def _try(self, resting: Sequence[tuple[Session, SessionBudget]], load: Load, plan: Plan) -> None:
        """Drafts for one of those that rest, after its pause. What its tree tells, it tells of all of its kind.

        For all of them at once, or as often, a drafter on the same cores would take more than trees bring. There it may
        also take less to wait for the tree, and to have what it brings, than to follow it beside a plain step.
        """
        read = [each for each in resting if not each[0].drafting.unheard] or resting
        session, budget = read[self._tries % len(read)]
        follow_s = self.times.follow_s(load.sessions)
        follows = not session.request.wish.sampled and (session.drafting.unheard or follow_s <= plan.lost_s)
        dear = (follow_s if follows else plan.lost_s) / (TRYING * FIRST_PAUSE * self.times.plain_s(load.sessions))
        if self._steps % (budget.pause * -(-len(resting) // AT_REST) * max(math.ceil(dear), 1)) > 0:
            return
        self._tries += 1
        if budget.followed is not None:
            return
        budget.rested()
        if follows:
            self._follow_next(session, budget, min(PROBE, load.most, session.request.wish.budget), plan.told)
        else:
            session.grant = Grant(plan.nodes, f"a try after a pause; {plan.told}")

    @staticmethod
    def _follow_next(session: Session, budget: SessionBudget, nodes: int, reason: str) -> None:
        """Asks for a tree that nobody waits for, unless the one before is on its way."""
        if budget.followed is None:
            budget.followed = Offered(len(session.context), nodes)
            session.grant = Grant(0, f"one of {nodes} nodes is followed, not waited for; {reason}", probe=nodes)
        else:
            session.grant = Grant(0, f"one of {budget.followed.asked} nodes is on its way; {reason}")

    # -- learning -----------------------------------------------------------------------------------------------------

    def offered(self, turns: Sequence[Turn], now: float) -> None:
        """Notes the trees of these turns before they are cut; a pass of them begins `now`."""
        began, self._began = self._began, None
        waited_s = 0.0 if began is None else max(now - began.at, 0.0)
        reads = any(turn.session.grant.nodes and not _is_heard(turn.session) for turn in turns)
        self._pass = _Pass(waited_s, reads)
        if began is not None and all(turn.step is Step.VERIFY and not turn.reads for turn in turns) and not reads:
            self.times.waits(began.sessions).learn(began.nodes, waited_s)
        for turn in turns:
            session, state = turn.session, turn.session.round
            if session.budget is not None and turn.step is Step.VERIFY and session.useful_depth:
                length, asked = len(session.context), session.grant.nodes
                fresh = None if state and state.focused else session.drafting.fresh(length)
                whole = fresh is not None and len(fresh) < asked  # of the tree itself: load and the end cut it
                session.budget.offered = Offered(length, asked, turn.tree, whole)

    def stepped(self, turns: Sequence[Turn], seconds: float) -> None:
        """A step of these turns, as they were run, has ended; its pass took so many seconds.

        Steps without a pass, all rows being held, tell nothing. Those while a drafter reads a prompt, or beside trees
        that are only followed, tell nothing of others.
        """
        ran = [turn for turn in turns if turn.tokens]
        if not ran or any(turn.reads for turn in ran) or self._costs.seconds(1) is None:
            return
        asked = any(turn.session.grant.nodes for turn in ran)
        beside = any(_beside(turn.session) for turn in ran)
        if all(_is_accounted(turn) for turn in turns):
            took_s = self._pass.waited_s + seconds
            self.times.accounted(len(turns), self._pass.emitted, took_s, tried=asked or beside)
        tokens = sum(turn.tokens for turn in ran)
        if self._pass.reads:
            return
        if not beside:
            self.times.stepped(len(ran), tokens, seconds, asked=asked)
        elif not asked:
            self.times.followed(len(ran), tokens, seconds)

    def arrived(self, session: Session, tree: DraftTree, base_length: int, *, growing: bool) -> None:
        """A tree has come; it is followed if it was asked for to that end, once it is whole."""
        budget = session.budget
        if growing or budget is None or budget.followed is None:
            return
        if budget.followed.base_length == base_length:
            budget.followed, budget.unread = Offered(base_length, budget.followed.asked, tree), False
            budget.heard = True

    def settled(self, turn: Turn, accepted: int) -> None:
        """A round has ended with this turn; the context has moved on."""
        session, budget, nodes = turn.session, turn.session.budget, turn.session.grant.nodes
        self._pass.emitted += accepted + 1
        if budget is None or turn.step is not Step.VERIFY:
            return
        offered, budget.offered = budget.offered, None
        self._follow(session, budget)
        if not nodes or offered is None or turn.fallback not in _LEARNT:
            return
        if turn.fallback is not Fallback.LATE:
            budget.heard = True
        elif not budget.heard:
            return  # the drafter reads the prompt
        if session.request.wish.sampled:  # by the shape, whatever was drawn
            shape = scheduled_shape(nodes if len(turn.tree) else 0, DEEPEST)
            leftmost = [int(np.argmax(shape.depths == depth)) for depth in range(1, accepted + 1)]
            budget.learn(Offered(offered.base_length, nodes), np.asarray(leftmost, dtype=np.int64), path_probs(shape))
            return
        if budget.looks and budget.followed is None:  # what was cut off is judged by the tokens to come
            budget.looks, budget.followed = False, offered
            self._follow(session, budget)
            return
        places = offered.places(session.context, accepted)
        assert places is not None
        self._learn(session, budget, offered, places, turn.tree)

    def _follow(self, session: Session, budget: SessionBudget) -> None:
        """Takes the tree that is followed in, once the tokens emitted since have left it."""
        followed = budget.followed
        if followed is None:
            return
        places = followed.places(session.context)
        if places is not None and followed.tree is not None:
            self._learn(session, budget, followed, places, followed.tree)
            budget.followed = None
        elif len(session.context) - followed.base_length > MOST_NODES:
            budget.followed, budget.unread = None, False  # it never came

    @staticmethod
    def _learn(
        session: Session, budget: SessionBudget, offered: Offered, places: NDArray[np.int64], verified: DraftTree
    ) -> None:
        probs = path_probs(verified)
        session.calibration.learn(float(probs.sum()), len(places))
        budget.learn(offered, places, probs)

    def _of(self, session: Session) -> SessionBudget:
        if session.budget is None:
            request, nucleus = session.request, session.request.nucleus is not None
            kind = self._kinds.setdefault((request.wish.proposal, request.sampling.greedy, nucleus), Kind())
            session.budget = SessionBudget(kind, shares=request.shares_outcome)
            session.calibration = Calibration(kind.calibration.factor)
        return session.budget


def _is_accounted(turn: Turn) -> bool:
    """True if the server chose whether it drafts, and what came of it may be known to others."""
    return turn.session.request.wish.auto and turn.step is Step.VERIFY and turn.session.request.shares_outcome


def _beside(session: Session) -> bool:
    """True while a tree of it is drafted that nobody waits for."""
    return session.budget is not None and session.budget.followed is not None and session.budget.followed.tree is None


def _is_heard(session: Session) -> bool:
    """False until a tree has come of a session for which the server chooses: its drafter reads the prompt first."""
    return session.budget is None or session.budget.heard


def _is_read(session: Session, budget: SessionBudget) -> bool:
    """True while the drafter reads the prompt of a session that it has heard of late."""
    return budget.unread and session.drafting.held
