"""A target engine on a table model, with a drafter that a test controls, free of transports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paceline.errors import PacelineError
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.target.config import TargetConfig
from paceline.target.ending import StopText
from paceline.target.engine import TargetEngine
from paceline.target.events import EngineEvent
from paceline.target.fallback import Fallback
from paceline.target.finish import Finish
from paceline.target.inbox import Inbox
from paceline.target.port import Advance, Close, DraftFault, LinkDown, LinkUp, Open, RowTold, TreeArrived, Update
from paceline.target.record import RoundRecord
from paceline.target.request import DraftWish, SessionRequest

PATIENCE_S = 30.0  # a test that waits longer has failed

Propose = Callable[[list[int], int], DraftTree | DraftFault | None]  # (context, budget) -> answer; None: no answer


def random_table(vocab: int, seed: int = 0, sharpness: float = 3.0) -> NDArray[np.float64]:
    """[vocab, vocab] next-token probabilities without zeros."""
    weights = np.exp(sharpness * np.random.default_rng(seed).random((vocab, vocab)))
    return weights / weights.sum(axis=1, keepdims=True)


def counting_table(vocab: int, sure: float = 1.0) -> NDArray[np.float64]:
    """After token t comes t + 1 (modulo vocab) with probability `sure`, else any."""
    table = np.full((vocab, vocab), (1 - sure) / vocab)
    table[np.arange(vocab), (np.arange(vocab) + 1) % vocab] += sure
    return table


class Collector:
    """A sink that keeps everything. `limit` is how many unread tokens it bears; `read` makes room."""

    def __init__(self, limit: int | None = None) -> None:
        self.deltas: list[tuple[int, ...]] = []
        self.end: Finish | PacelineError | None = None
        self.done = threading.Event()
        self.moved = threading.Semaphore(0)  # one per delta
        self.limit = limit
        self.read_tokens = 0

    @property
    def all_tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta]

    def tokens(self, tokens: Sequence[int], round_: RoundRecord) -> None:
        assert round_.delivered == tuple(tokens)
        assert not self.done.is_set(), "tokens after the end"
        assert len(tokens) > 0, "an empty delta"
        self.deltas.append(tuple(tokens))
        self.moved.release()

    def finish(self, finish: Finish) -> None:
        assert not self.done.is_set(), "two ends"
        self.end = finish
        self.done.set()

    def fail(self, error: PacelineError) -> None:
        assert not self.done.is_set(), "two ends"
        self.end = error
        self.done.set()

    def behind(self) -> bool:
        return self.limit is not None and len(self.all_tokens) - self.read_tokens >= self.limit

    def wait(self) -> Finish:
        """The finish. Raises the error it ended with."""
        assert self.done.wait(PATIENCE_S), f"no end after {len(self.all_tokens)} tokens"
        if isinstance(self.end, PacelineError):
            raise self.end
        assert self.end is not None
        return self.end

    def wait_deltas(self, count: int) -> None:
        """Returns once `count` more deltas have come."""
        for _ in range(count):
            assert self.moved.acquire(timeout=PATIENCE_S)


class DirectOutbox:
    """Runs calls in the compute thread."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def post(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def flush(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class FakeDrafter:
    """Holds contexts as a real drafter would, checks every frame, and answers by a function of context and budget."""

    def __init__(self, inbox: Inbox[EngineEvent], propose: Propose) -> None:
        self.inbox, self.propose = inbox, propose
        self.contexts: dict[int, list[int]] = {}
        self.epochs: dict[int, int] = {}
        self.opens: list[Open] = []
        self.frames = 0
        self.rows = 0  # rows told
        self.full = False  # refuses frames
        self.delay_s: Callable[[Sequence[Update]], float] | None = (
            None  # how long answers to a frame take; None: none at all
        )
        self.generation = 1  # of the connection that is up, or comes up next
        self.served = 0  # generation the contexts belong to
        self.clock = inbox._clock

    def link(self) -> None:
        """Comes up, knowing nothing."""
        self.inbox.post([LinkUp(self.generation)])

    def lose(self) -> None:
        """Goes down; frames for this connection are dropped from now on. `link` comes up again."""
        self.generation += 1
        self.inbox.post([LinkDown(Fallback.LOST)])

    def send(self, generation: int, updates: Sequence[Update]) -> bool:
        if self.full:
            return False
        if generation != self.generation:
            return True
        self.frames += 1
        if generation != self.served:
            self.served = generation
            self.contexts.clear()
        answers = [answer for update in updates if (answer := self.take(update)) is not None]
        if self.delay_s is None:
            self.inbox.post(answers)
        elif answers:
            timer = threading.Timer(self.delay_s(updates), lambda: self.inbox.post(map(self.read_now, answers)))
            timer.daemon = True
            timer.start()
        return True

    def read_now(self, answer: TreeArrived | DraftFault) -> TreeArrived | DraftFault:
        return replace(answer, at=self.clock()) if isinstance(answer, TreeArrived) else answer

    def take(self, update: Update) -> TreeArrived | DraftFault | None:
        session = update.session
        if isinstance(update, Close):
            self.contexts.pop(session, None)
            return None
        if isinstance(update, Open):
            assert update.epoch > self.epochs.get(session, 0), "an epoch that does not rise"
            self.opens.append(update)
            self.epochs[session] = update.epoch
            self.contexts[session] = update.context.tolist()
        elif isinstance(update, RowTold):
            assert update.epoch == self.epochs[session]
            assert update.base_length == len(self.contexts[session]), "a row of another context"
            assert 0 < update.row.probs.sum() <= 1 + 1e-6
            self.rows += 1
            if update.drawn is not None:
                self.contexts[session].append(update.drawn)
        else:
            assert isinstance(update, Advance)
            assert update.epoch == self.epochs[session]
            assert update.base_length == len(self.contexts[session]), "an advance that leaves a gap"
            self.contexts[session] += update.tokens.tolist()
        if update.budget == 0:
            return None
        return self.answer(session, update.budget)

    def answer(self, session: int, budget: int) -> TreeArrived | DraftFault | None:
        context = self.contexts[session]
        proposed = self.propose(list(context), budget)
        if proposed is None:
            return None
        epoch = self.epochs[session]
        if isinstance(proposed, DraftFault):
            return DraftFault(session, epoch, proposed.reason, proposed.retry, proposed.text)
        return TreeArrived(session, epoch, len(context), proposed, self.clock())


@dataclass
class Rig:
    """A running engine."""

    engine: TargetEngine
    runner: ToyRunner
    drafter: FakeDrafter
    records: list[RoundRecord] = field(default_factory=list)

    def submit(self, request: SessionRequest, limit: int | None = None) -> tuple[int, Collector]:
        sink = Collector(limit)
        return self.engine.submit(request, sink), sink

    def decode(self, request: SessionRequest) -> tuple[list[int], Finish]:
        sink = self.submit(request)[1]
        finish = sink.wait()
        return sink.all_tokens, finish


@contextmanager
def running(
    runner: ToyRunner,
    propose: Propose | None = None,
    *,
    stop_text: Callable[[tuple[str, ...]], StopText] | None = None,
    clock: Callable[[], float] = time.monotonic,
    delay_s: Callable[[Sequence[Update]], float] | None = None,
    **config: object,
) -> Iterator[Rig]:
    """An engine with a linked drafter (`propose` None: none). At the end KV must be empty and whole."""
    settings = TargetConfig(**{"draft_deadline_ms": 5000.0, **config})  # type: ignore[arg-type]
    inbox: Inbox[EngineEvent] = Inbox(clock)
    drafter = FakeDrafter(inbox, propose or (lambda context, budget: None))
    drafter.delay_s = delay_s
    records: list[RoundRecord] = []
    engine = TargetEngine(
        runner,
        settings,
        outbox=DirectOutbox(),
        inbox=inbox,
        port=drafter,
        stop_text=stop_text,
        clock=clock,
        observer=records.append,
    )
    if propose is not None:
        drafter.link()
    engine.start()
    try:
        yield Rig(engine, runner, drafter, records)
    finally:
        assert engine.stop(timeout_s=PATIENCE_S)
    if engine._lost is None:
        runner.kv.check_integrity()
        assert runner.kv.pages_used == 0
        assert not drafter.contexts or drafter.served != drafter.generation, "sessions left at the drafter"


def request(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    budget: int = 8,
    coupled: bool = False,
    wish: DraftWish | None = None,
    **fields: object,
) -> SessionRequest:
    """A request; other fields by name."""
    kind = Proposal.COUPLED if coupled else Proposal.RANKED
    return SessionRequest(
        prompt=np.asarray(prompt, dtype=np.int32),
        max_tokens=max_tokens,
        wish=wish or DraftWish(budget=budget, proposal=kind),
        **fields,  # type: ignore[arg-type]
    )


def sampled(temperature: float, seed: int, top_p: float = 1.0, top_k: int = 0) -> SamplingParams:
    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)


def plain(runner: ToyRunner, wanted: SessionRequest, **config: object) -> list[int]:
    """The reply without a drafter."""
    with running(runner, None, **config) as rig:
        return rig.decode(wanted)[0]


class Scene:
    """Stops the engine before certain passes until the test has changed the world."""

    def __init__(self, *at: int) -> None:
        self.at = set(at)
        self.passes = 0
        self.held, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, plan: object) -> None:
        self.passes += 1
        if self.passes in self.at:
            self.held.release()
            assert self.go.acquire(timeout=PATIENCE_S)

    async def act(self, change: Callable[[], Awaitable[None]]) -> None:
        """Waits for the next stop, changes the world, and lets the engine go on."""
        assert await asyncio.to_thread(self.held.acquire, timeout=PATIENCE_S)
        await change()
        self.go.release()
