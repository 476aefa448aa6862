"""The target engine: the batch loop in a thread of its own, and the ways in and out of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from paceline.errors import InvalidField, Overloaded, Unavailable
from paceline.runtime.runner import ModelRunner
from paceline.speculation.choices import Choices, SeededChoices
from paceline.speculation.noise import Purpose
from paceline.target.allot import StepBudget
from paceline.target.budget import Budgets
from paceline.target.config import TargetConfig
from paceline.target.context import Context
from paceline.target.counters import Counters, Totals
from paceline.target.drafting import Drafting, DraftTiming, LinkView
from paceline.target.ending import Ending, StopText
from paceline.target.events import Cancel, EngineEvent, Resume, Stop, Submit
from paceline.target.inbox import Inbox
from paceline.target.loop import BatchLoop
from paceline.target.outbox import Outbox
from paceline.target.port import DraftPort, NoDrafter
from paceline.target.progress import Progress
from paceline.target.record import RoundObserver
from paceline.target.request import SessionRequest
from paceline.target.roster import Roster
from paceline.target.round import Rounds, SelectionRule
from paceline.target.row_cache import RowCache
from paceline.target.seats import Seats
from paceline.target.session import Session, Sink
from paceline.target.shared_prompts import SharedPrompts
from paceline.target.strength import StrengthLine, Strengths
from paceline.target.talk import DrafterTalk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """State of the engine at a moment."""

    active: int  # sessions being decoded
    queued: int  # sessions waiting for a slot or for KV
    kv_pages_used: int
    kv_pages_total: int
    suspended: bool  # the drafter missed several deadlines in a row and is not waited for
    totals: Totals
    strengths: Sequence[StrengthLine]  # what was learned of coupling


def seeded_choices(request: SessionRequest) -> Choices:
    """Choices by the request's noise. Plain draws of a request that teaches may be known from a replay."""
    return SeededChoices(request.sampling, Purpose.DRAW if request.teaches else Purpose.NUCLEUS)


class TargetEngine:
    """Decodes sessions in a compute thread. All methods but `start` and `stop` may be called from any thread."""

    def __init__(
        self,
        runner: ModelRunner,
        config: TargetConfig,
        *,
        outbox: Outbox,
        eos_token_ids: frozenset[int] | None = None,
        stop_text: Callable[[tuple[str, ...]], StopText] | None = None,
        inbox: Inbox[EngineEvent] | None = None,
        port: DraftPort | None = None,
        rule: SelectionRule | None = None,
        choices: Callable[[SessionRequest], Choices] | None = None,
        clock: Callable[[], float] = time.monotonic,
        observer: RoundObserver | None = None,
    ) -> None:
        """Takes the parts.

        Args:
            runner: the model; used by the compute thread only, once started.
            config: limits and times.
            outbox: takes calls to the event loop.
            eos_token_ids: tokens that end a reply; None: the model's.
            stop_text: watches a reply for stop strings; None where no request has any.
            inbox: where `port` posts what comes from drafters; None where there is none.
            port: carries updates to a drafter; None decodes plainly.
            rule: order of the steps of a round.
            choices: makes the random choices of a request; None: its noise.
            clock: seconds, monotonic; the inbox must have the same.
            observer: called in the compute thread with a record of every round.
        """
        self.context_length = served_context(runner, config)
        self.inbox: Inbox[EngineEvent] = inbox or Inbox(clock)
        self.counters = Counters()
        self._runner, self._config, self._clock = runner, config, clock
        self._stop_text, self._choices = stop_text, choices or seeded_choices
        self._outbox = outbox
        self._progress = Progress(clock)
        self._seats = Seats(config.max_sessions + config.max_queue)
        self._roster = Roster(runner.kv, config.max_sessions)
        timing = DraftTiming(config.draft_deadline_ms / 1e3, config.probe_ms / 1e3, config.suspend_after)
        self._link = LinkView(timing)
        self._strengths = Strengths()
        self._eos = runner.info.eos_token_ids if eos_token_ids is None else eos_token_ids
        talk = DrafterTalk(self._link, port or NoDrafter(), tuple(sorted(self._eos)), learn=config.learn)
        self._ids = count(1)
        self._lost: str | None = None
        cache = RowCache(int(config.row_cache_mb * 2**20))
        self._loop = BatchLoop(
            runner,
            rule or Rounds(runner.costs, cache),
            StepBudget(config.step_tokens, config.prefill_chunk),
            Budgets(runner.costs),
            cost_aware=config.cost_aware,
            cache=cache,
            prompts=SharedPrompts(runner.kv, cache, self.counters),
            never_idle_sessions=config.never_idle_sessions,
            roster=self._roster,
            talk=talk,
            inbox=self.inbox,
            outbox=outbox,
            start=self._session,
            ended=self._seats.give_back,
            counters=self.counters,
            progress=self._progress,
            clock=clock,
            observer=observer,
        )
        self._thread = threading.Thread(target=self._run, name="paceline-target", daemon=True)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the compute thread."""
        self._thread.start()

    def stop(self, reason: str = "the target is shutting down", timeout_s: float | None = None) -> bool:
        """Ends all sessions with Unavailable and the thread; False if a pass still runs after `timeout_s`. Blocks."""
        self.inbox.post([Stop(reason)])
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def healthy(self) -> None:
        """Raises Unavailable if the engine is lost, or has not moved for `stall_s` with work pending. Never blocks."""
        if self._lost is not None:
            raise Unavailable(f"the engine is lost: {self._lost}")
        stalled_s = self._progress.stalled_s
        if stalled_s > self._config.stall_s:
            raise Unavailable(
                f"no progress for {stalled_s:.1f} s while work is pending; stall_s is {self._config.stall_s:g}"
            )

    # -- sessions -----------------------------------------------------------------------------------------------------

    def submit(self, request: SessionRequest, sink: Sink) -> int:
        """Takes a request in and returns the session's id.

        Raises Overloaded if all seats are taken, Unavailable if the engine is lost, InvalidField if the context does
        not fit. Otherwise the sink is called until it has a finish or an error.
        """
        if self._lost is not None:
            raise Unavailable(f"the engine is lost: {self._lost}")
        length = len(request.prompt) + len(request.delivered)
        if len(request.prompt) >= self.context_length or length > self.context_length:
            allowed = f"fewer tokens than the context limit of {self.context_length}"
            raise InvalidField("prompt_tokens", f"{length} tokens", allowed, "Shorten the prompt.")
        if not self._seats.take():
            limits = f"max_sessions {self._config.max_sessions}, max_queue {self._config.max_queue}"
            raise Overloaded(f"all {self._seats.limit} places for sessions are taken ({limits}); try again later")
        session = next(self._ids)
        self._progress.pending()
        if not self.inbox.post([Submit(session, request, sink, self._clock())]):
            self._seats.give_back()
            raise Unavailable(self._lost or "the target is shutting down")
        return session

    def cancel(self, session: int) -> None:
        """Ends a session whose reply nobody reads; nothing more is delivered. Unknown and ended ones are left alone."""
        self.inbox.post([Cancel(session)])

    def resume(self, session: int) -> None:
        """Goes on with a session whose reader had been behind."""
        self.inbox.post([Resume(session)])

    def status(self) -> EngineStatus:
        """State at this moment."""
        active = self._roster.active_count
        return EngineStatus(
            active=active,
            queued=max(self._seats.taken - active, 0),
            kv_pages_used=self._runner.kv.pages_used,
            kv_pages_total=self._runner.kv.pages_total,
            suspended=self._link.suspended,
            totals=self.counters.totals(),
            strengths=self._strengths.lines(),
        )

    # -- compute thread -----------------------------------------------------------------------------------------------

    def _session(self, submit: Submit) -> Session:
        request = submit.request
        room = min(request.max_tokens, self.context_length - len(request.prompt))
        text = None
        if request.stops:
            if self._stop_text is None:
                raise InvalidField("stop", request.stops, "none", "This engine has no tokenizer.")
            text = self._stop_text(request.stops)
        ending = Ending(frozenset() if request.ignore_eos else self._eos, text, room)
        return Session(
            submit.session,
            request,
            submit.sink,
            context=Context(request.prompt, request.delivered, len(request.prompt) + room),
            choices=self._choices(request),
            drafting=Drafting(request, self._link, self._strengths),
            ending=ending,
            resumed=ending.cut(request.delivered.tolist()),
            now=submit.at,
        )

    def _run(self) -> None:
        try:
            self._loop.run()
            ended = Unavailable("the target is shutting down")
        except BaseException as error:
            log.critical("the engine is lost", exc_info=error)
            self._lost = f"{type(error).__name__}: {error}"
            ended = Unavailable(f"the engine is lost: {self._lost}")
            self._loop.end_all(ended)
        for event in self.inbox.close():
            if isinstance(event, Submit):
                event.sink.fail(ended)
                self._seats.give_back()
        self._outbox.flush()


def served_context(runner: ModelRunner, config: TargetConfig) -> int:
    """Most tokens of prompt and reply together: what model, KV memory and configuration all allow.

    Raises InvalidField if KV memory is too small for anything.
    """
    page = runner.kv.page_size
    kv_tokens = runner.kv.pages_total * page
    fits = kv_tokens - config.max_budget - page  # a tree and the unused end of a page
    if fits < 2:
        raise InvalidField("kv_tokens", kv_tokens, f"at least {config.max_budget + page + 2}", "Raise kv_tokens.")
    return min(runner.info.context_length, fits, config.context_length or fits)
