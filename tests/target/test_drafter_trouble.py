"""Drafter down, hung, slow, back again: rounds stay bounded, tokens stay the same, drafting resumes."""

from __future__ import annotations

import threading

from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.port import TreeArrived
from target import drafters
from target.rig import PATIENCE_S, plain, random_table, request, running

VOCAB = 32
TABLE = random_table(VOCAB, seed=6)
PROMPT = [1, 2, 3]


def test_a_hung_drafter_is_waited_for_three_times_and_no_more() -> None:
    wanted = request(PROMPT, 50)
    expected = plain(ToyRunner(TABLE), wanted)
    with running(ToyRunner(TABLE), lambda context, budget: None, draft_deadline_ms=20.0, probe_ms=60_000.0) as rig:
        tokens, finish = rig.decode(wanted)
        assert rig.engine.status().suspended
        assert rig.drafter.frames <= 6, "a drafter that does not answer is asked no more"
        assert rig.decode(request([4], 20))[1].stats.fallbacks == {Fallback.SUSPENDED: 18}
    assert tokens == expected
    assert finish.stats.fallbacks == {Fallback.LATE: 3, Fallback.SUSPENDED: 45}
    waited = [record for record in rig.records if record.fallback is Fallback.LATE]
    for record in waited:
        assert record.asked_at is not None
        assert record.started_at - record.asked_at >= 0.020


def test_rounds_wait_no_longer_than_the_deadline() -> None:
    """On a clock of our own: the pass runs when the clock reads the deadline, and not before."""
    now, slept = [0.0], threading.Event()

    def clock() -> float:
        return now[0]

    with running(ToyRunner(TABLE), lambda context, budget: slept.set(), draft_deadline_ms=1000.0, clock=clock) as rig:
        sink = rig.submit(request(PROMPT, 3))[1]
        assert slept.wait(PATIENCE_S)
        now[0] = 0.9
        rig.engine.inbox.post([])
        assert not sink.done.wait(0.1)
        assert len(sink.all_tokens) == 1
        now[0] = 1.01
        rig.engine.resume(0)  # any event makes the loop look at the clock
        sink.wait()


def test_drafting_resumes_when_the_drafter_answers_again() -> None:
    """Hung for a while, then it answers the question it still holds, late, and the next ones in time."""
    wanted = request(PROMPT, 120)
    expected = plain(ToyRunner(TABLE), wanted)
    right = drafters.oracle(PROMPT, expected)
    hung = threading.Event()
    hung.set()
    passes = iter(range(10_000))
    runner = ToyRunner(TABLE, before_execute=lambda plan: wake() if next(passes) == 30 else None)
    with running(
        runner,
        lambda context, budget: None if hung.is_set() else right(context, budget),
        draft_deadline_ms=100.0,
        probe_ms=60_000.0,
    ) as rig:

        def wake() -> None:
            hung.clear()
            answers = [rig.drafter.answer(session, 8) for session in rig.drafter.contexts]
            rig.drafter.inbox.post([answer for answer in answers if answer is not None])

        tokens, finish = rig.decode(wanted)
        assert not rig.engine.status().suspended
    assert tokens == expected
    assert finish.stats.accepted > 60
    assert finish.stats.fallbacks[Fallback.LATE] == 3


def test_a_suspended_drafter_that_lost_the_question_is_probed() -> None:
    wanted = request(PROMPT, 200)
    expected = plain(ToyRunner(TABLE), wanted)
    right = drafters.oracle(PROMPT, expected)
    questions = iter(range(10_000))

    def propose(context: list[int], budget: int) -> DraftTree | None:
        return None if next(questions) < 4 else right(context, budget)

    now = [0.0]

    def tick(plan: object) -> None:
        now[0] += 0.1

    class Sleepy:
        """A clock that moves when looked at, so that waits end at once."""

        def __call__(self) -> float:
            now[0] += 0.0005
            return now[0]

    with running(
        ToyRunner(TABLE, before_execute=tick), propose, draft_deadline_ms=10.0, probe_ms=1000.0, clock=Sleepy()
    ) as rig:
        tokens, finish = rig.decode(wanted)
        assert not rig.engine.status().suspended
    assert tokens == expected
    assert finish.stats.fallbacks[Fallback.LATE] == 3
    assert 5 <= finish.stats.fallbacks[Fallback.SUSPENDED] <= 25
    assert finish.stats.accepted > 100


def test_a_lost_link_falls_back_at_once_and_sessions_reopen_whole() -> None:
    wanted = [request([k, *PROMPT], 100) for k in range(3)]
    expected = [plain(ToyRunner(TABLE), each) for each in wanted]
    right = [drafters.oracle([k, *PROMPT], expected[k]) for k in range(3)]
    passes = iter(range(10_000))

    def event(plan: object) -> None:
        count = next(passes)
        if count == 6:
            rig.drafter.lose()
        elif count == 15:
            rig.drafter.link()

    with running(
        ToyRunner(TABLE, before_execute=event),
        lambda context, budget: right[context[0]](context, min(budget, 2)),
        draft_deadline_ms=60_000.0,  # whoever waits for the lost one fails by timeout
    ) as rig:
        sinks = [rig.submit(each)[1] for each in wanted]
        finishes = [sink.wait() for sink in sinks]
        opens = rig.drafter.opens
    assert [sink.all_tokens for sink in sinks] == expected
    for finish in finishes:
        assert set(finish.stats.fallbacks) == {Fallback.LOST}
        assert 7 <= finish.stats.fallbacks[Fallback.LOST] <= 10
        assert finish.stats.accepted > 40
    assert len(opens) == 6
    assert {update.epoch for update in opens} == {1, 2}
    assert all(len(update.context) > 10 for update in opens[3:])


def test_one_silent_session_is_suspended_and_the_others_are_not() -> None:
    wanted = [request([k], 60) for k in range(3)]
    expected = [plain(ToyRunner(TABLE), each) for each in wanted]
    right = [drafters.oracle([k], expected[k]) for k in range(3)]

    def propose(context: list[int], budget: int) -> DraftTree | None:
        return None if context[0] == 1 else right[context[0]](context, 1)

    with running(ToyRunner(TABLE), propose, draft_deadline_ms=100.0, probe_ms=60_000.0) as rig:
        sinks = [rig.submit(each)[1] for each in wanted]
        finishes = [sink.wait() for sink in sinks]
        assert not rig.engine.status().suspended
    assert [sink.all_tokens for sink in sinks] == expected
    assert finishes[1].stats.fallbacks == {Fallback.LATE: 3, Fallback.SUSPENDED: 55}
    for k in (0, 2):
        assert not finishes[k].stats.fallbacks
        assert finishes[k].stats.accepted >= 29


def test_a_full_queue_to_the_drafter_costs_no_wait() -> None:
    wanted = request(PROMPT, 40)
    with running(ToyRunner(TABLE), drafters.random_trees(VOCAB, 1), draft_deadline_ms=60_000.0) as rig:
        rig.drafter.full = True
        tokens, finish = rig.decode(wanted)
        assert tokens == plain(ToyRunner(TABLE), wanted)
        assert set(finish.stats.fallbacks) <= {Fallback.LATE, Fallback.SUSPENDED}
        rig.drafter.full = False
        assert rig.decode(request([9], 30))[1].stats.drafted >= 0


def test_more_nodes_than_asked_for_are_cut() -> None:
    def propose(context: list[int], budget: int) -> DraftTree:
        return DraftTree.build(range(VOCAB), [-1] * VOCAB)

    with running(ToyRunner(TABLE), propose) as rig:
        _, finish = rig.decode(request(PROMPT, 20, budget=3))
    assert finish.stats.drafted <= 3 * finish.stats.rounds


def test_trees_for_a_length_the_drafter_was_not_told_of_reopen_the_session() -> None:
    with running(ToyRunner(TABLE), lambda context, budget: None, draft_deadline_ms=60_000.0) as rig:
        drafter = rig.drafter

        def answer(session: int, budget: int) -> TreeArrived:
            length = len(drafter.contexts[session]) + (1 if drafter.epochs[session] == 1 else 0)
            return TreeArrived(session, drafter.epochs[session], length, DraftTree.chain([0]), drafter.clock())

        drafter.answer = answer  # type: ignore[method-assign]
        _, finish = rig.decode(request(PROMPT, 20))
        assert [update.epoch for update in drafter.opens] == [1, 2]
    assert finish.stats.fallbacks == {Fallback.INVALID: 1}
