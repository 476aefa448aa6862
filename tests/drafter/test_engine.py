"""The drafter's engine: epochs, lengths, limits, and faults that stay with their session."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.drafter.engine import Advance, Close, DrafterEngine, Fault, Open, Reply, Update
from paceline.drafter.proposer import ContextTooLong, DraftOptions, Growth, Want
from paceline.speculation.modes import Proposal
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree

OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset(), 100, True)


class Echo:
    """Proposes the last token again; fails on a context that ends with 13, refuses one longer than 20."""

    name = "echo"
    tokenizer_fingerprint = "mine"
    context_length = 20

    def __init__(self) -> None:
        self.contexts: dict[int, list[int]] = {}
        self.asked: list[int] = []  # wants of each call
        self.rows: list[tuple[list[int], Row]] = []

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        if len(context) > self.context_length:
            raise ContextTooLong(f"{len(context)} tokens, limit {self.context_length}")
        self.contexts[session] = context.tolist()

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        if len(self.contexts[session]) + len(tokens) > self.context_length:
            raise ContextTooLong("too long")
        self.contexts[session] += tokens

    def close(self, session: int) -> None:
        del self.contexts[session]

    def row(self, session: int, row: Row) -> None:
        self.rows.append((list(self.contexts[session]), row))

    def propose(self, wants: Sequence[Want]) -> list[Growth]:
        self.asked.append(len(wants))
        if any(self.contexts[want.session][-1] == 13 for want in wants):
            raise RuntimeError("unlucky")
        return [Growth(DraftTree.chain([self.contexts[want.session][-1]] * want.budget)) for want in wants]


class Bench:
    """An engine with its proposer; replies are collected per stream."""

    def __init__(self, max_sessions: int = 8) -> None:
        self.proposer = Echo()
        self.engine = DrafterEngine(self.proposer, max_sessions, max_budget=4)
        self.replies: queue.Queue[list[Reply]] = queue.Queue()

    def send(self, *updates: Update, stream: int = 1) -> None:
        self.engine.submit(stream, updates, self.replies.put)

    def take(self) -> list[Reply]:
        return self.replies.get(timeout=20)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.engine.start()
    yield made
    made.engine.stop(20)


def opened(session: int, context: Sequence[int], epoch: int = 1, budget: int = 2, fingerprint: str = "mine") -> Open:
    return Open(session, epoch, np.asarray(context, np.int32), 1, fingerprint, OPTIONS, budget)


def test_a_tree_for_each_session_that_wants_one_in_one_batch(bench: Bench) -> None:
    bench.send(opened(1, [5]), opened(2, [6, 7], budget=9), opened(3, [8], budget=0))
    first, second = sorted(bench.take(), key=lambda reply: reply.session)
    assert (first.base_length, first.tree.tokens.tolist()) == (1, [5, 5])  # type: ignore[union-attr]
    assert (second.base_length, len(second.tree)) == (2, 4), "the engine's limit holds"  # type: ignore[arg-type]
    assert bench.proposer.asked[0] == 2, "the one that wants no tree is read later"


class Growing(Echo):
    """Proposes one node more in every call, up to three; the first tree is not worth telling."""

    def propose(self, wants: Sequence[Want]) -> list[Growth]:
        self.asked.append(len(wants))
        nodes = min(len(self.asked), 3)
        return [Growth(DraftTree.chain([1] * nodes), growing=nodes < 3, soon=nodes == 1) for _ in wants]


def test_a_tree_that_another_follows_soon_is_not_told(bench: Bench) -> None:
    bench.engine._proposer = bench.proposer = Growing()
    bench.send(opened(1, [5]))
    ((second,), (third,)) = bench.take(), bench.take()
    assert [(len(each.tree), each.growing) for each in (second, third) if each.tree is not None] == [
        (2, True),
        (3, False),
    ]


def test_the_newest_advance_wins(bench: Bench) -> None:
    bench.send(opened(1, [5], budget=0), Advance(1, 1, 1, [6], 2), Advance(1, 1, 2, [7, 8], 1))
    (reply,) = bench.take()
    assert (reply.base_length, reply.tree.tokens.tolist()) == (4, [8])  # type: ignore[union-attr]


def test_frames_of_an_older_epoch_are_dropped(bench: Bench) -> None:
    bench.send(opened(1, [5], epoch=3), Advance(1, 2, 1, [6], 2), Close(1, 1))
    (reply,) = bench.take()
    assert (reply.epoch, reply.base_length) == (3, 1)


def test_a_wrong_length_costs_that_session_only(bench: Bench) -> None:
    bench.send(opened(1, [5]), opened(2, [6]))
    bench.take()
    bench.send(Advance(1, 1, 9, [6], 2), Advance(2, 1, 1, [7], 2))
    replies = {reply.session: reply for reply in bench.take()}
    assert replies[1].fault is Fault.PROTOCOL
    assert "9" in replies[1].message
    assert replies[2].tree is not None
    assert list(bench.proposer.contexts.values()) == [[6, 7]]


def test_a_session_that_is_not_open(bench: Bench) -> None:
    bench.send(Close(9, 1), Advance(9, 1, 0, [1], 1))
    (reply,) = bench.take()
    assert reply.fault is Fault.PROTOCOL


def test_opening_again_starts_afresh(bench: Bench) -> None:
    bench.send(opened(1, [5]))
    bench.take()
    bench.send(opened(1, [9, 9], epoch=2))
    (reply,) = bench.take()
    assert (reply.epoch, reply.base_length) == (2, 2)
    assert bench.engine.sessions == 1


def test_another_tokenizer_is_refused(bench: Bench) -> None:
    bench.send(opened(1, [5], fingerprint="theirs"))
    (reply,) = bench.take()
    assert reply.fault is Fault.TOKENIZER_MISMATCH
    assert bench.engine.sessions == 0


def test_limits_are_named(bench: Bench) -> None:
    bench.send(*(opened(session, [1], budget=0) for session in range(8)), opened(8, [1]))
    (reply,) = bench.take()
    assert (reply.fault, reply.message) == (Fault.OVERLOADED, "8 sessions are open, allowed: 8")
    bench.send(Close(0, 1), opened(8, list(range(21))))
    (reply,) = bench.take()
    assert (reply.fault, reply.message) == (Fault.CONTEXT_LIMIT, "21 tokens, limit 20")
    bench.send(Advance(1, 1, 1, [1] * 20, 1))
    (reply,) = bench.take()
    assert reply.fault is Fault.CONTEXT_LIMIT
    assert bench.engine.sessions == 6


def test_a_proposer_that_fails_on_one_session_serves_the_others(bench: Bench) -> None:
    bench.send(opened(1, [5]), opened(2, [13]), opened(3, [7]))
    replies = {reply.session: reply for reply in bench.take()}
    assert replies[2].fault is Fault.INTERNAL
    assert replies[1].tree is not None
    assert replies[3].tree is not None
    assert bench.engine.sessions == 2
    bench.send(Advance(1, 1, 1, [6], 1))
    assert bench.take()[0].tree is not None


def test_the_end_of_a_stream_frees_its_sessions_and_no_others(bench: Bench) -> None:
    bench.send(opened(1, [5]), stream=1)
    bench.take()
    bench.send(opened(1, [6]), stream=2)
    bench.take()
    bench.engine.end_stream(1)
    bench.send(Advance(1, 1, 1, [7], 1), stream=2)
    (reply,) = bench.take()
    assert reply.base_length == 2
    assert list(bench.proposer.contexts.values()) == [[6, 7]]


def test_two_hundred_sessions_at_random_leave_nothing(bench: Bench) -> None:
    generator = random.Random(7)
    lengths: dict[tuple[int, int], tuple[int, int]] = {}  # (stream, session) -> epoch, length
    for number in range(200):
        stream, session = generator.randrange(3), generator.randrange(6)
        name = (stream, session)
        epoch, length = lengths.get(name, (0, 0))
        if length and generator.random() < 0.6 and length < 18:
            bench.send(Advance(session, epoch, length, [number % 12], generator.randrange(3)), stream=stream)
            lengths[name] = (epoch, length + 1)
        elif generator.random() < 0.7:
            bench.send(opened(session, [1, 2], epoch + 1), stream=stream)
            lengths[name] = (epoch + 1, 2)
        else:
            bench.send(Close(session, epoch), stream=stream)
            lengths[name] = (epoch, 0)
    for stream in range(3):
        bench.engine.end_stream(stream)
    bench.send(opened(1, [99]), stream=7)
    while [99] not in bench.proposer.contexts.values():
        bench.take()
    assert bench.engine.sessions == 1
    assert list(bench.proposer.contexts.values()) == [[99]]
    assert bench.engine.stalled_s() < 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_seen() -> None:
    bench = Bench()

    def broken(updates: object) -> None:
        raise SystemExit

    bench.engine.start()
    bench.engine.submit(1, [opened(1, [5])], broken)
    bench.engine._thread.join(20)
    assert bench.engine.stalled_s() == float("inf")


def test_upkeep_is_done_while_nothing_else_is_and_its_failure_stops_nobody() -> None:
    parts: queue.Queue[int] = queue.Queue()
    replies: queue.Queue[list[Reply]] = queue.Queue()
    left = [3]

    def upkeep() -> bool:
        if left[0] < 0:
            raise RuntimeError("out of order")
        parts.put(left[0])
        left[0] = max(0, left[0] - 1)
        return left[0] > 0

    engine = DrafterEngine(Echo(), max_sessions=8, max_budget=4, upkeep=upkeep)
    engine.start()
    try:
        assert [parts.get(timeout=20) for _ in range(3)] == [3, 2, 1], "without a frame"
        assert engine.stalled_s() < 20
        left[0] = -1
        for session in (1, 2):
            engine.submit(1, [opened(session, [5], budget=2)], replies.put)
            (reply,) = replies.get(timeout=20)
            assert reply.tree is not None
        assert parts.empty(), "it waits for the next frame once it is through"
    finally:
        engine.stop(20)
