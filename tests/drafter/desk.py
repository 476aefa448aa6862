"""A target that opens, advances and closes a drafter's sessions at random."""

from __future__ import annotations

import queue
import random
from collections import Counter

import numpy as np

from paceline.drafter.engine import DrafterEngine
from paceline.drafter.messages import Advance, Close, Fault, Open, Reply
from paceline.drafter.proposer import DraftOptions, Proposer
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams

VOCAB = 64
LIMIT = 96  # tokens of a context in these tests
BUDGET = 12
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
        return self.random.choice([0, 1, 4, BUDGET])

    def hear(self, replies: list[Reply]) -> None:
        for reply in replies:
            self.seen[reply.fault] += 1
            if reply.fault is None:
                assert (reply.session, reply.epoch, reply.base_length) in self.said
                assert reply.tree is not None
                assert len(reply.tree) <= BUDGET
            elif reply.epoch == self.epochs[reply.session]:
                self.contexts.pop(reply.session, None)


def drive(proposer: Proposer, sessions: int, seed: int) -> Counter[object]:
    """Faults and trees (None) of that many sessions, eight of them open at a time at most."""
    engine = DrafterEngine(proposer, max_sessions=8, max_budget=BUDGET)
    desk = Desk(engine, seed)
    engine.start()
    try:
        desk.run(sessions)
    finally:
        engine.stop(30)
    return desk.seen
