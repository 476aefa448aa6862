"""The batch loop: every pass serves all sessions that are ready, prompts and replies together.

It runs in the compute thread, which owns sessions, KV and drafting state. Events come in through the inbox; tokens and
frames to the drafter leave through the outbox, once per step. While nothing can be computed the thread sleeps in the
inbox until an event or the nearest deadline.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import DeadlineExceeded, EngineFault, PacelineError, Unavailable
from paceline.runtime.kv import OutOfPages
from paceline.runtime.runner import ModelRunner
from paceline.speculation.tree import ROOT
from paceline.speculation.verify import Walk
from paceline.target.allot import StepBudget
from paceline.target.budget import Budgets
from paceline.target.counters import Counters
from paceline.target.events import Cancel, EngineEvent, Resume, Stop, Submit
from paceline.target.execute import Failed, Ran, execute, try_out
from paceline.target.finish import FinishReason
from paceline.target.inbox import Inbox
from paceline.target.outbox import Outbox
from paceline.target.plan import Load
from paceline.target.port import DraftFault, LinkDown, LinkUp, TreeArrived
from paceline.target.progress import Progress
from paceline.target.record import RoundObserver, RoundRecord
from paceline.target.roster import Roster
from paceline.target.round import Moment, SelectionRule, Settled, hold, never_waits, rows_of, settle, walk
from paceline.target.row_cache import RowCache
from paceline.target.session import Session
from paceline.target.shared_prompts import SharedPrompts
from paceline.target.talk import DrafterTalk
from paceline.target.turn import Step, Turn, Wait
from paceline.target.worth import path_probs, worthwhile

log = logging.getLogger(__name__)

HOLD = 1.25  # a pass is held for trees at most this many deadlines after the step before


@dataclass(frozen=True, slots=True)
class Seen:
    """A turn before it is settled."""

    reason: str
    focused: bool
    position: int
    started_at: float
    ended_at: float


class EngineLost(Exception):
    """The engine cannot go on; the text says why."""


class BatchLoop:
    """Runs sessions until told to stop."""

    def __init__(
        self,
        runner: ModelRunner,
        rule: SelectionRule,
        budget: StepBudget,
        budgets: Budgets,
        *,
        cost_aware: bool,
        cache: RowCache,
        prompts: SharedPrompts,
        never_idle_sessions: int,
        roster: Roster,
        talk: DrafterTalk,
        inbox: Inbox[EngineEvent],
        outbox: Outbox,
        start: Callable[[Submit], Session],
        ended: Callable[[], None],
        counters: Counters,
        progress: Progress,
        clock: Callable[[], float],
        observer: RoundObserver | None,
    ) -> None:
        """`budgets` chooses the draft nodes of sessions that leave them to the server.

        `cost_aware`: whether trees are cut to what pays.
        `cache` has first rows, `prompts` says who reads one for all.
        With more than `never_idle_sessions` sessions the target has no time to fill.
        `start` makes a session of a request; `ended` is called once for each that has ended.
        """
        self._runner, self._rule, self._budget, self._cost_aware = runner, rule, budget, cost_aware
        self._budgets = budgets
        self._cache, self._prompts, self._never_idle_sessions = cache, prompts, never_idle_sessions
        self._roster, self._talk = roster, talk
        self._inbox, self._outbox = inbox, outbox
        self._start, self._ended = start, ended
        self._counters, self._progress, self._clock, self._observer = counters, progress, clock, observer
        self._held_since = clock()  # end of the step before, or of a sleep without work

    def run(self) -> None:
        """Until Stop. Raises EngineLost, or what broke, if the engine cannot go on."""
        while True:
            self._progress.moved()
            stop = self._receive(self._inbox.take())
            if stop is not None:
                self.end_all(Unavailable(stop.reason))
                self._talk.tell([], 0, self._clock())  # last goodbyes
                self._outbox.flush()
                return
            now = self._clock()
            self._expire(now)
            self._roster.admit()
            moving = [each for each in self._roster.active if not each.paused]
            moment = self._moment(moving, now)
            self._grant(moving, moment)
            for session in moving:
                self._rule.begin(session, moment)
            self._talk.tell(moving, moment.budget, now)
            self._outbox.flush()
            turns, wake_at = self._choose(self._prompts.ready(moving, self._roster.active), moment)
            if turns:
                self._step(turns, moment)
            else:
                self._sleep(wake_at)

    def end_all(self, error: PacelineError) -> None:
        """Ends every session with `error`. KV that is broken is left alone."""
        for session in list(self._roster):
            session.sink.fail(error)
            try:
                self._leave(session)
            except Exception:
                log.exception("session %d could not be taken out", session.id)
        self._outbox.flush()

    # -- events -------------------------------------------------------------------------------------------------------

    def _receive(self, events: Sequence[EngineEvent]) -> Stop | None:
        for event in events:
            match event:
                case Stop():
                    return event
                case Submit():
                    self._submit(event)
                case Cancel():
                    session = self._roster.find(event.session)
                    if session is not None:
                        self._leave(session)
                case Resume():
                    session = self._roster.find(event.session)
                    if session is not None:
                        session.paused = False
                case LinkUp() | LinkDown():
                    self._talk.linked(event)
                case TreeArrived() | DraftFault():
                    session = self._roster.find(event.session)
                    if not self._talk.heard(event, session, self._clock()):
                        self._counters.add(stale_frames=1)
                    elif isinstance(event, TreeArrived) and session is not None:
                        self._budgets.arrived(session, event.tree, event.base_length, growing=event.growing)
        return None

    def _submit(self, event: Submit) -> None:
        self._counters.add(sessions=1)
        try:
            session = self._start(event)
        except Exception as error:  # a fault of one request, whatever it is, ends that request only
            log.exception("session %d (%s) could not be started", event.session, event.request.request_id)
            event.sink.fail(EngineFault(f"the session could not be started: {error}"))
            self._ended()
            return
        self._roster.queue(session)
        resumed = session.resumed
        if resumed.reason is not None:  # everything had been delivered; only the end had not
            self._finish(session, resumed.reason, resumed.stop_match)

    def _expire(self, now: float) -> None:
        late = [each for each in self._roster if each.request.deadline is not None and now >= each.request.deadline]
        for session in late:
            self._fail(session, DeadlineExceeded(f"the deadline passed after {session.context.reply_length} tokens"))

    # -- the step -----------------------------------------------------------------------------------------------------

    def _moment(self, moving: Sequence[Session], now: float) -> Moment:
        """What the sessions' choices depend on; `budget` is the draft nodes each may have in the next pass."""
        reading = sum(each.rounds == 0 for each in moving)
        drafting = sum(each.rounds > 0 and each.request.wish.budget > 0 for each in moving)
        return Moment(
            now=now,
            budget=self._budget.draft_share(len(moving) - reading, drafting, reading),
            hold_until=self._held_since + HOLD * self._talk.link.timing.deadline_s,
            loaded=len(moving) > self._never_idle_sessions,
        )

    def _grant(self, moving: Sequence[Session], moment: Moment) -> None:
        """Before rounds begin: how many draft nodes each of them is for."""
        beginning = [each for each in moving if each.round is None]
        if not beginning:
            return
        reading = sum(min(len(each.context), self._budget.prefill_chunk) for each in moving if each.rounds == 0)
        decoding = sum(each.rounds > 0 for each in moving)
        load = Load(moment.now, decoding, min(reading, self._budget.prefill_chunk), moment.budget)
        self._budgets.begin(beginning, load)

    def _choose(self, moving: Sequence[Session], moment: Moment) -> tuple[list[Turn], float | None]:
        """The turns of the next pass; none, and when to look again, while a tree is worth waiting for.

        Others wait with a session for its tree, so that all share a pass. They do not while a row pass is to be run:
        it overlaps drafting, and a pass that runs anyway takes along whoever is ready.
        """
        turns: list[Turn] = []
        waits: list[Wait] = []
        for session in moving:
            choice = self._rule.choose(session, self._committed(session), moment)
            if isinstance(choice, Wait):
                waits.append(choice)
            else:
                turns.append(choice)
        overlaps = any(turn.step is not Step.VERIFY for turn in turns)
        if waits and not turns:
            return [], min(wait.until for wait in waits)
        if waits and not overlaps:
            held_until = max(wait.hold_until for wait in waits)
            if moment.now < held_until:
                return [], min(held_until, *(wait.until for wait in waits))
        return turns, None

    def _step(self, turns: list[Turn], moment: Moment) -> None:
        started_at = self._clock()
        for turn in turns:
            if not never_waits(turn.session, moment):
                turn.session.drafting.overdue(len(turn.session.context), started_at)
        self._talk.link.stepped()
        turns = self._budget.pack(turns)
        self._budgets.offered(turns, started_at)
        if self._cost_aware and self._runner.costs.seconds(1) is not None:  # where nothing is measured everything pays
            seconds = self._budgets.times.seconds(len(turns), sum(turn.tokens + 1 for turn in turns))
            turns = worthwhile(turns, seconds, max(started_at - self._held_since, 0.0))
        ran = False
        for outcome in execute(self._runner, turns):
            if isinstance(outcome, Failed):
                self._failed(outcome)
            else:
                ran = True
                self._ran(outcome, started_at)
        if not ran:
            self._prove_alive()
        self._held_since = self._clock()
        self._budgets.stepped(turns, self._held_since - started_at)

    def _ran(self, outcome: Ran, started_at: float) -> None:
        turn, rows = outcome.turn, outcome.rows
        if outcome.started and rows is not None:
            self._counters.add(passes=1, pass_tokens=rows.tokens, pass_s=rows.pass_s)
        if not turn.draws:
            self._runner.kv.keep(self._sequence(turn.session), range(turn.chunk))
            return
        session, state = turn.session, turn.session.round
        assert state is not None, "a round begins before its turns"
        served = rows_of(turn, rows, outcome.segment, self._runner.info.vocab_size)
        try:
            if turn.step is Step.HOLD:
                hold(turn, served, self._runner.kv)
                self._counters.add(row_passes=1)
                return
            walked = walk(turn, served)
            if session.rounds == 0 and turn.held is None:
                self._cache.keep(session.request, session.context.copy(0), served.held(ROOT))
        except Exception as error:  # non-finite logits, above all: nothing can be drawn for this session
            if len(turn.tree):
                self._distrust(turn, error)
            else:
                self._failed(Failed(turn, error))
            return
        seen = Seen(state.chosen.reason, state.focused, len(session.context), started_at, self._clock())
        settled = settle(turn, walked, served, self._runner.kv, seen.ended_at)
        if turn.step is Step.VERIFY:
            self._counters.selected(settled.rule, seen.reason)
            self._counters.granted(session.grant.nodes, session.grant.reason)
        self._emit(turn, settled, self._record(turn, walked, settled, seen, 0 if rows is None else rows.tokens))

    def _distrust(self, turn: Turn, error: Exception) -> None:
        """A row of a tree cannot be drawn from: the session goes on without trees, and fails only if that fails too."""
        log.warning("session %d: no draft trees any more: %s", turn.session.id, error)
        turn.session.untrusted = True
        self._runner.kv.drop_scratch(self._sequence(turn.session))

    def _emit(self, turn: Turn, settled: Settled, record: RoundRecord) -> None:
        session, delivery = turn.session, settled.delivery
        self._budgets.settled(turn, settled.accepted)
        if self._cost_aware and session.request.wish.budget and not session.request.wish.auto:
            session.calibration.learn(float(path_probs(turn.tree).sum()), settled.accepted)
        self._counters.add(
            emitted=len(delivery.tokens),
            accepted=settled.accepted,
            drafted=len(turn.tree),
            relaxed=len(settled.relaxed),
            row_passes=turn.step is Step.DRAW,
            row_hits=turn.row_hit,
            fallbacks=Counter([str(turn.fallback)]) if turn.fallback is not None else None,
        )
        session.sink.tokens(delivery.tokens, record)
        self._observe(record)
        if delivery.reason is not None:
            self._finish(session, delivery.reason, delivery.stop_match)
        else:
            session.paused = session.sink.behind()

    def _record(self, turn: Turn, walked: Walk, settled: Settled, seen: Seen, tokens: int) -> RoundRecord:
        session = turn.session
        return RoundRecord(
            session=session.id,
            request_id=session.request.request_id,
            position=seen.position,
            tree=turn.tree,
            accepted=walked.accepted,
            drawn=None if settled.held_back else walked.drawn,
            delivered=settled.delivery.tokens,
            fallback=turn.fallback,
            asked_at=session.drafting.asked_at,
            tree_at=session.drafting.tree_at,
            started_at=seen.started_at,
            ended_at=seen.ended_at,
            pass_tokens=tokens,
            rule=settled.rule,
            reason=seen.reason,
            budget=session.grant.nodes,
            budget_reason=session.grant.reason,
            relaxed=settled.relaxed,
            focused=seen.focused,
            deviation_spent=session.ledger.spent,
            relaxed_tokens=session.relaxed,
        )

    def _observe(self, record: RoundRecord) -> None:
        if self._observer is None:
            return
        try:
            self._observer(record)
        except Exception:  # an observer is no part of serving
            log.exception("the round observer failed")

    def _prove_alive(self) -> None:
        """After a step in which every computation raised: was it the sessions, or the device?"""
        try:
            try_out(self._runner)
        except OutOfPages:
            return  # no room to try; the sessions that hold it will show
        except Exception as error:
            raise EngineLost(f"a pass of one plain token fails too: {type(error).__name__}: {error}") from error

    def _sleep(self, wake_at: float | None) -> None:
        deadlines = [each.request.deadline for each in self._roster if each.request.deadline is not None]
        self._progress.idle()  # also while a tree is waited for, however long: whoever is waited for may be stuck
        if wake_at is not None:
            until = min([wake_at, *deadlines])
            self._inbox.wait(until if math.isfinite(until) else None)
            return
        if not self._roster.active_count:
            self._runner.kv.check_integrity()  # nobody runs: the cheapest time to look
        self._inbox.wait(min(deadlines, default=None))
        self._held_since = self._clock()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _finish(self, session: Session, reason: FinishReason, stop_match: str) -> None:
        session.sink.finish(session.finish(reason, stop_match, self._clock()))
        self._leave(session, complete=True)

    def _failed(self, failed: Failed) -> None:
        session, error = failed.turn.session, failed.error
        log.error("session %d (%s) failed", session.id, session.request.request_id, exc_info=error)
        self._counters.add(faults=1)
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._fail(session, EngineFault(f"the session's computation failed: {type(error).__name__}: {text[:200]}"))

    def _fail(self, session: Session, error: PacelineError) -> None:
        session.sink.fail(error)
        self._leave(session)

    def _leave(self, session: Session, *, complete: bool = False) -> None:
        self._talk.goodbye(session, complete=complete)
        self._ended()
        self._roster.remove(session)

    def _committed(self, session: Session) -> int:
        return self._runner.kv.length(self._sequence(session))

    @staticmethod
    def _sequence(session: Session) -> int:
        assert session.sequence is not None
        return session.sequence
