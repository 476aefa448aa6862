"""Faults stay with whom they belong to; a lost engine says so."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from paceline.errors import DeadlineExceeded, EngineFault, Overloaded, Unavailable
from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.target.config import TargetConfig
from paceline.target.engine import TargetEngine
from paceline.target.fallback import Fallback
from target import drafters
from target.rig import PATIENCE_S, Collector, DirectOutbox, counting_table, plain, random_table, request, running

VOCAB = 32
TABLE = random_table(VOCAB, seed=2)


def raising_for(marker: int, error: Exception):
    """Raises for every pass that holds the sequence whose prompt starts with `marker`, once it decodes."""
    sequences: set[int] = set()

    def before(plan: PassPlan) -> None:
        for segment in plan.segments:
            if len(segment) >= 3 and int(segment.tokens[0]) == marker:
                sequences.add(segment.sequence)
            elif segment.sequence in sequences:
                raise error

    return before


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a device error\nwith a long dump"), torch.OutOfMemoryError("CUDA out of memory"), MemoryError()],
)
def test_one_session_that_cannot_be_computed(error: Exception) -> None:
    wanted = [request([k, 1, 2], 60) for k in range(4)]
    alone = [plain(ToyRunner(TABLE), each) for each in wanted]
    runner = ToyRunner(TABLE, before_execute=raising_for(2, error))
    with running(runner, drafters.random_trees(VOCAB, 1), prefill_chunk=3) as rig:
        sinks = [rig.submit(each)[1] for each in wanted]
        for k in (0, 1, 3):
            sinks[k].wait()
            assert sinks[k].all_tokens == alone[k]
        with pytest.raises(EngineFault, match=type(error).__name__) as raised:
            sinks[2].wait()
        assert "\n" not in str(raised.value)
        rig.engine.healthy()
        assert rig.engine.counters.totals().faults == 1
        assert rig.decode(wanted[0])[0] == alone[0]


def test_a_failing_prompt_alone_does_not_end_the_engine() -> None:
    def before(plan: PassPlan) -> None:
        if any(int(segment.tokens[0]) == 7 for segment in plan.segments):
            raise RuntimeError("this prompt")

    with running(ToyRunner(TABLE, before_execute=before), None) as rig:
        for _ in range(5):
            with pytest.raises(EngineFault):
                rig.decode(request([7], 5))
        rig.engine.healthy()
        assert len(rig.decode(request([6], 1))[0]) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("whole", [False, True])
def test_logits_that_are_not_finite(value: float, whole: bool) -> None:
    """Token 5 leads to a row with one NaN or +inf, or nothing else: that session fails, by name."""
    runner = ToyRunner(counting_table(VOCAB))
    runner._logits[5, :] = value if whole else runner._logits[5, :]
    runner._logits[5, 9] = value
    with running(runner, None) as rig:
        bad, good = rig.submit(request([0], 20))[1], rig.submit(request([10], 20))[1]
        with pytest.raises(EngineFault, match="NonFiniteRow"):
            bad.wait()
        assert bad.all_tokens == [1, 2, 3, 4, 5]
        good.wait()
        assert good.all_tokens == list(range(11, 31))


def test_an_engine_that_cannot_compute_anything_is_lost() -> None:
    broken = threading.Event()

    def before(plan: PassPlan) -> None:
        if broken.is_set():
            raise RuntimeError("CUDA error: device-side assert triggered")

    with running(ToyRunner(TABLE, before_execute=before), None, max_queue=5, max_sessions=2) as rig:
        sinks = [rig.submit(request([k], 100_000))[1] for k in range(4)]
        sinks[0].wait_deltas(3)
        broken.set()
        errors = []
        for sink in sinks:
            with pytest.raises((Unavailable, EngineFault)) as raised:
                sink.wait()
            errors.append(type(raised.value))
        assert errors[2:] == [Unavailable, Unavailable]
        with pytest.raises(Unavailable, match="lost"):
            rig.engine.healthy()
        with pytest.raises(Unavailable, match="lost"):
            rig.engine.submit(request([1], 5), Collector())


def test_broken_kv_books_end_the_engine() -> None:
    def before(plan: PassPlan) -> None:
        rig.runner.kv._owners[17] += 1

    with running(ToyRunner(TABLE, before_execute=before), None) as rig:
        sink = rig.submit(request([1], 1))[1]
        sink.wait()  # finished before anyone looked
        rig.engine._thread.join(PATIENCE_S)
        with pytest.raises(Unavailable, match="owners of pages"):
            rig.engine.healthy()


def test_a_pass_that_hangs_makes_the_engine_unhealthy_and_health_never_blocks() -> None:
    entered, release = threading.Event(), threading.Event()

    def before(plan: PassPlan) -> None:
        entered.set()
        assert release.wait(PATIENCE_S)

    now = [0.0]
    engine = TargetEngine(
        ToyRunner(TABLE, before_execute=before),
        TargetConfig(stall_s=60),
        outbox=DirectOutbox(),
        clock=lambda: now[0],
    )
    engine.start()
    wait_idle(engine)
    now[0] = 1000.0
    engine.healthy()  # nothing is pending, however long
    sink = Collector()
    engine.submit(request([1], 5), sink)
    assert entered.wait(PATIENCE_S)
    now[0] += 40.0
    engine.healthy()  # a pass of 40 s is bearable
    now[0] += 30.0
    with pytest.raises(Unavailable, match="no progress for 70"):
        engine.healthy()
    release.set()
    sink.wait()
    wait_idle(engine)
    engine.healthy()
    assert engine.stop(timeout_s=PATIENCE_S)


def wait_idle(engine: TargetEngine) -> None:
    """Returns once the compute thread sleeps."""
    for _ in range(int(PATIENCE_S * 1000)):
        if engine._progress._since is None:
            return
        threading.Event().wait(0.001)
    raise AssertionError("the engine is not idle")


def test_full_house_is_refused_by_name_and_opens_again() -> None:
    release = threading.Event()

    def before(plan: PassPlan) -> None:
        assert release.wait(PATIENCE_S)

    with running(ToyRunner(TABLE, before_execute=before), None, max_sessions=2, max_queue=3) as rig:
        sinks = [rig.submit(request([k], 4))[1] for k in range(5)]
        with pytest.raises(Overloaded, match="max_sessions 2, max_queue 3"):
            rig.submit(request([9], 4))
        release.set()
        for sink in sinks:
            sink.wait()
        assert len(rig.decode(request([9], 4))[0]) == 4


def test_sessions_wait_for_kv_in_order() -> None:
    """Room for 96 tokens: the long one waits for the short ones before it, and is not overtaken."""
    with running(ToyRunner(TABLE, pages=6), None, max_budget=8) as rig:
        order: list[str] = []

        class Named(Collector):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            def tokens(self, tokens, round_) -> None:
                if not self.deltas:
                    order.append(self.name)
                super().tokens(tokens, round_)

        sinks = [Named(name) for name in ("short", "long", "after")]
        for sink, (length, count) in zip(sinks, ((10, 20), (40, 30), (10, 20)), strict=True):
            rig.engine.submit(request([1] * length, count, budget=0), sink)
        for sink in sinks:
            sink.wait()
    assert order == ["short", "long", "after"]


@pytest.mark.parametrize("stage", ["queued", "reading", "waiting", "decoding"])
def test_cancel_frees_everything_at_every_stage(stage: str) -> None:
    """`running` checks at its end that no KV page and no session at the drafter is left."""
    held = threading.Event()
    gate = threading.Semaphore(0)

    def before(plan: PassPlan) -> None:
        if stage in ("queued", "reading"):
            held.set()
            assert gate.acquire(timeout=PATIENCE_S)

    propose = (lambda context, budget: held.set()) if stage == "waiting" else drafters.random_trees(VOCAB, 2)
    runner = ToyRunner(TABLE, before_execute=before)
    with running(runner, propose, max_sessions=1, prefill_chunk=4, step_tokens=4, draft_deadline_ms=60_000) as rig:
        session, sink = rig.submit(request([1] * 20, 3000))
        if stage == "queued":
            assert held.wait(PATIENCE_S)
            queued, other = rig.submit(request([2], 3))
            rig.engine.cancel(queued)
            rig.engine.cancel(session)
            gate.release(100)
            assert not other.deltas
        elif stage in ("reading", "waiting"):
            assert held.wait(PATIENCE_S)
            rig.engine.cancel(session)
            gate.release(100)
        else:
            sink.wait_deltas(3)
            rig.engine.cancel(session)
        rig.engine.cancel(12345)
        gate.release(100)
        held.clear()
        follower = rig.submit(request([3], 1, budget=0))[1]
        follower.wait()
        assert not sink.done.is_set()
        assert len(sink.all_tokens) < 3000


def test_deadlines_end_sessions_wherever_they_are() -> None:
    """One in the middle of its reply, one waiting, one too late from the start: no pass runs for those."""
    gate, held = threading.Semaphore(3), threading.Event()

    def before(plan: PassPlan) -> None:
        if not gate.acquire(blocking=False):
            held.set()
            assert gate.acquire(timeout=PATIENCE_S)

    now = [100.0]
    with running(ToyRunner(TABLE, before_execute=before), None, max_sessions=1, clock=lambda: now[0]) as rig:
        decoding = rig.submit(request([1], 50, deadline=110.0))[1]
        queued = rig.submit(request([2], 50, deadline=110.0))[1]
        late = rig.submit(request([3], 50, deadline=99.0))[1]
        assert held.wait(PATIENCE_S)
        now[0] = 111.0
        gate.release(1)
        for sink in (decoding, queued, late):
            with pytest.raises(DeadlineExceeded):
                sink.wait()
        assert (len(decoding.all_tokens), queued.all_tokens, late.all_tokens) == (4, [], [])
        assert rig.engine.counters.totals().passes == 4


def test_a_slow_reader_pauses_alone_and_loses_nothing() -> None:
    wanted = request([1], 200)
    expected = plain(ToyRunner(TABLE), wanted)
    with running(ToyRunner(TABLE), drafters.oracle([1], expected)) as rig:
        session, slow = rig.submit(wanted, limit=20)
        fast = rig.submit(request([5], 300, budget=0))[1]
        fast.wait()
        assert 20 <= len(slow.all_tokens) <= 20 + 8
        while not slow.done.is_set():
            slow.read_tokens = len(slow.all_tokens)
            rig.engine.resume(session)
            slow.moved.acquire(timeout=0.2)
        assert slow.all_tokens == expected
        assert set(slow.wait().stats.fallbacks) <= {Fallback.LATE}


def test_stop_ends_sessions_with_a_status_that_can_be_retried() -> None:
    engine = TargetEngine(ToyRunner(TABLE), TargetConfig(), outbox=DirectOutbox())
    engine.start()
    sink = Collector()
    engine.submit(request([1], 1_000_000), sink)
    sink.wait_deltas(2)
    assert engine.stop("draining", timeout_s=PATIENCE_S)
    with pytest.raises(Unavailable, match="draining"):
        sink.wait()
    with pytest.raises(Unavailable):
        engine.submit(request([1], 5), Collector())
