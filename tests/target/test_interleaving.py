"""Random interleaving of everything that can happen: finished replies are right, and nothing is left behind."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from paceline.errors import DeadlineExceeded, Overloaded
from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.finish import Finish
from paceline.target.port import DraftFault, Retry
from paceline.target.request import SessionRequest
from target import drafters
from target.rig import PATIENCE_S, Collector, Rig, plain, random_table, request, running, sampled

VOCAB = 24
TABLE = random_table(VOCAB, seed=12)
SESSIONS = 150
Started = tuple[SessionRequest, int, Collector]


def some_request(source: random.Random) -> SessionRequest:
    prompt = [source.randrange(VOCAB) for _ in range(source.choice([1, 2, 7, 33, 90]))]
    params = sampled(source.choice([0.0, 0.7, 1.0]), source.randrange(2**64), top_p=source.choice([1.0, 0.9]))
    return request(prompt, source.choice([1, 2, 5, 40, 80]), budget=source.choice([0, 1, 8, 20]), sampling=params)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_interleaving(seed: int) -> None:
    source = random.Random(seed)
    trees = np.random.default_rng(seed)
    linked = True

    def propose(context: list[int], budget: int) -> DraftTree | DraftFault | None:
        kind = trees.random()
        if kind < 0.04:
            return None
        if kind < 0.1:
            reason = [Fallback.EVICTED, Fallback.INTERNAL, Fallback.INVALID][int(trees.integers(3))]
            return DraftFault(0, 0, reason, list(Retry)[int(trees.integers(4))], "fuzz")
        return drafters.random_tree(trees, VOCAB, int(trees.integers(0, budget + 1)))

    started: list[Started] = []
    runner = ToyRunner(TABLE, pages=120, context_length=160)
    config = {"max_sessions": 6, "max_queue": 4, "step_tokens": 32, "prefill_chunk": 12, "draft_deadline_ms": 1.0}
    with running(runner, propose, probe_ms=3.0, max_budget=32, **config) as rig:
        while len(started) < SESSIONS:
            wanted, slow = some_request(source), source.random() < 0.2
            try:
                session, sink = rig.submit(wanted, limit=12 if slow else None)
            except Overloaded:
                started[-1][2].done.wait(0.002)
                catch_up(rig, started)
                continue
            started.append((wanted, session, sink))
            if source.random() < 0.4:
                sink.done.wait(source.random() * 0.004)
                rig.engine.cancel(session)
            if source.random() < 0.05:
                if linked:
                    rig.drafter.lose()
                else:
                    rig.drafter.link()
                linked = not linked
        pause = threading.Event()
        for _ in range(int(PATIENCE_S * 200)):
            status = rig.engine.status()
            if not status.active and not status.queued:
                break
            catch_up(rig, started)
            pause.wait(0.005)
        assert (status.active, status.queued) == (0, 0)
        totals = rig.engine.counters.totals()
    finished = [(wanted, sink) for wanted, _, sink in started if isinstance(sink.end, Finish)]
    assert len(finished) > SESSIONS / 3
    for wanted, _, sink in started:
        assert sink.end is None or isinstance(sink.end, Finish | DeadlineExceeded)
        expected = plain(ToyRunner(TABLE, context_length=160), wanted)
        assert sink.all_tokens == expected[: len(sink.all_tokens)]
        if isinstance(sink.end, Finish):
            assert sink.all_tokens == expected
            assert sink.end.stats.rounds + sink.end.stats.accepted >= len(expected)
    assert totals.emitted == sum(len(sink.all_tokens) for _, _, sink in started)
    assert totals.sessions == SESSIONS


def catch_up(rig: Rig, started: list[Started]) -> None:
    """Slow readers read everything."""
    for _, session, sink in started:
        if sink.limit is not None and not sink.done.is_set():
            sink.read_tokens = len(sink.all_tokens)
            rig.engine.resume(session)
