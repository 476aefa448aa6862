"""Sessions of the model proposer that come and go: nothing is left, and nobody feels the others."""

from __future__ import annotations

import queue
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.engine import DrafterEngine
from paceline.drafter.messages import Advance, Close, Fault, Open, Reply
from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import DraftOptions
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelRunner
from paceline.runtime.toy import ToyRunner
from paceline.runtime.transformers_runner import load_runner
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from support.tiny import tiny_model
from target.rig import random_table

VOCAB = 64
LIMIT = 96  # tokens of a context in these tests
OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset([5]), VOCAB, True)


class Desk:
    """A target that opens, advances and closes sessions at random, and checks every reply against what it said."""

    def __init__(self, engine: DrafterEngine, seed: int) -> None:
        self.engine, self.random = engine, random.Random(seed)
        self.replies: queue.Queue[list[Reply]] = queue.Queue()
        self.contexts: dict[int, list[int]] = {}  # open sessions, as far as this end knows
        self.said: set[tuple[int, int, int]] = set()  # (session, epoch, length) that a tree may be for
        self.epochs: Counter[int] = Counter()
        self.opened = 0
        self.seen: Counter[object] = Counter()

    def run(self, sessions: int) -> None:
        while self.opened < sessions:
            for _ in range(self.random.randrange(8)):  # these may make one batch
                self.move(self.random.randrange(12))
            self.catch_up()
        self.engine.end_stream(1)
        self.catch_up()
        assert self.engine.sessions == 0

    def catch_up(self) -> None:
        """Returns once the engine has answered all that was said before."""
        answered: queue.Queue[list[Reply]] = queue.Queue()
        self.engine.submit(2, [Advance(0, 0, 0, [], 0)], answered.put)  # of a session that is not open
        assert answered.get(timeout=30)[0].fault is Fault.PROTOCOL
        while not self.replies.empty():
            self.hear(self.replies.get())

    def move(self, session: int) -> None:
        context = self.contexts.get(session)
        draw = self.random.random()
        update: Open | Advance | Close
        if context is None or draw < 0.1:
            context = self.contexts[session] = self.tokens(1, LIMIT)
            self.epochs[session] += 1
            self.opened += 1
            update = Open(
                session,
                self.epochs[session],
                np.asarray(context, np.int32),
                len(context),
                "same",
                OPTIONS,
                self.budget(),
            )
        elif draw < 0.25:
            del self.contexts[session]
            update = Close(session, self.epochs[session])
        else:
            tokens = self.tokens(1, 6)
            update = Advance(session, self.epochs[session], len(context), tokens, self.budget())
            context += tokens
        if context is not None:
            self.said.add((session, self.epochs[session], len(context)))
        self.engine.submit(1, [update], self.replies.put)

    def tokens(self, fewest: int, most: int) -> list[int]:
        return [self.random.randrange(VOCAB) for _ in range(self.random.randint(fewest, most))]

    def budget(self) -> int:
        return self.random.choice([0, 1, 4, 12])

    def hear(self, replies: list[Reply]) -> None:
        for reply in replies:
            self.seen[reply.fault] += 1
            if reply.fault is None:
                assert (reply.session, reply.epoch, reply.base_length) in self.said
                assert reply.tree is not None
                assert len(reply.tree) <= 12
            elif reply.epoch == self.epochs[reply.session]:
                self.contexts.pop(reply.session, None)


def drive(runner: ModelRunner, sessions: int, seed: int) -> Counter[object]:
    """Faults and trees (None) of that many sessions; the runner must then be as it was."""
    proposer = ModelProposer(runner, "same", max_depth=4, width=4, step_tokens=64, min_path_prob=0.0)
    engine = DrafterEngine(proposer, max_sessions=8, max_budget=12)
    desk = Desk(engine, seed)
    engine.start()
    try:
        desk.run(sessions)
    finally:
        engine.stop(30)
    runner.kv.check_integrity()
    assert (runner.kv.pages_used, runner.kv.sequences) == (0, 0)
    return desk.seen


@pytest.mark.parametrize("pages", [400, 20])
def test_two_hundred_sessions_leave_nothing(pages: int) -> None:
    """With room for all of them, and with far too little."""
    runner = ToyRunner(random_table(VOCAB), context_length=128, pages=pages)
    seen = drive(runner, 200, pages)
    assert seen[None] > 100
    assert seen[Fault.OVERLOADED] > 10, "eight may be open"
    assert seen[Fault.INTERNAL] == 0


def test_passes_that_fail_at_random_cost_sessions_and_no_pages() -> None:
    generator = random.Random(4)

    def before(plan: PassPlan) -> None:
        if generator.random() < 0.1:
            raise RuntimeError("no luck")

    seen = drive(ToyRunner(random_table(VOCAB), context_length=128, pages=400, before_execute=before), 200, 5)
    assert seen[None] > 50
    assert seen[Fault.INTERNAL] > 5


def test_a_transformers_model_is_left_as_it_was(tmp_path: Path) -> None:
    runner = load_runner(ModelSpec(str(tiny_model(tmp_path))), 512, measure_s=0.0)
    assert drive(runner, 60, 6)[None] > 20
