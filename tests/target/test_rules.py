"""Selection rules and waits: the same tokens as plain decoding under every legal one, and what each rule does."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from paceline.runtime.costs import PassCosts
from paceline.runtime.stop import StopOutcome
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.finish import Finish, FinishReason
from paceline.target.pace import Pace
from paceline.target.port import DraftFault, Retry, TreeArrived, Update
from paceline.target.request import DraftWish, SessionRequest
from target import drafters
from target.rig import FakeDrafter, Propose, plain, random_table, request, running, sampled

VOCAB = 16
PROMPT = [3, 1, 4, 1, 5]
TABLE = random_table(VOCAB, seed=5)
RULES = [Selection.DRAFT, Selection.RETAIN, Selection.RERANK, Selection.DRAW_FIRST, Selection.AUTO]
WAITS = list(WaitFor)
PARAMS = {"greedy": sampled(0.0, 0), "0.7": sampled(0.7, 11), "top_p": sampled(1.0, 5, top_p=0.9)}


def wish(rule: Selection, wait: WaitFor = WaitFor.DEADLINE, budget: int = 6, **fields: object) -> DraftWish:
    return DraftWish(budget, selection=rule, wait=wait, **fields)  # type: ignore[arg-type]


def scored(context: list[int], budget: int) -> DraftTree:
    """A bushy tree with probabilities, right about half the time."""
    generator = np.random.default_rng([len(context), *context[-3:]])
    tree = drafters.random_tree(generator, VOCAB, budget)
    likely = int(np.argmax(TABLE[context[-1]]))
    if len(tree) and likely not in tree.tokens[tree.children(-1)]:
        tree = DraftTree.build([likely, *tree.tokens], [-1, *(tree.parents + (tree.parents >= 0))])
    log_probs = -generator.random(len(tree)) * 3
    return DraftTree.build(tree.tokens.tolist(), tree.parents.tolist(), log_probs.tolist())


def faulty(context: list[int], budget: int) -> DraftTree | DraftFault | None:
    """Answers well, late, wrongly or not at all, by turns."""
    turn = len(context) % 4
    if turn == 0:
        return DraftFault(0, 0, Fallback.EVICTED, Retry.REOPEN, "full")
    return None if turn == 1 else scored(context, budget)


DRAFTERS: dict[str, Propose] = {
    "scored": scored,
    "faulty": faulty,
    "empty": lambda context, budget: DraftTree.empty(),
}


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("rule", "wait"), list(itertools.product(RULES, WAITS)))
def test_equal_to_plain(rule: Selection, wait: WaitFor, drafter: str, params: str) -> None:
    sampling = PARAMS[params]
    expected = plain(ToyRunner(TABLE), request(PROMPT, 60, sampling=sampling))
    config = {"draft_deadline_ms": 3.0} if drafter == "faulty" else {}
    if drafter == "faulty" and wait is WaitFor.TREE:
        pytest.skip("a drafter that never answers is waited for without end, until it is lost")
    with running(ToyRunner(TABLE), DRAFTERS[drafter], **config) as rig:
        wanted = request(PROMPT, 60, sampling=sampling, wish=wish(rule, wait))
        tokens, finish = rig.decode(wanted)
    assert tokens == expected
    stats = finish.stats
    assert stats.rounds + stats.accepted - stats.held_back == 60
    assert sum(stats.selections.values()) <= stats.rounds


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("proposal", [Proposal.RANKED, Proposal.COUPLED])
def test_equal_to_plain_in_company_with_answers_that_take_their_time(
    rule: Selection, wait: WaitFor, proposal: Proposal
) -> None:
    waits = random.Random(7)
    requests = [
        request(PROMPT[:n], 40, sampling=sampled(0.9, n), wish=wish(rule, wait, 4, proposal=proposal))
        for n in range(1, 5)
    ]
    expected = [plain(ToyRunner(TABLE), each) for each in requests]
    with running(
        ToyRunner(TABLE), scored, delay_s=lambda _: waits.random() * 0.004, draft_deadline_ms=3.0, never_idle_sessions=2
    ) as rig:
        sinks = [rig.submit(each)[1] for each in requests]
        for sink in sinks:
            sink.wait()
    assert [sink.all_tokens for sink in sinks] == expected


class Letters:
    """Stop text over tokens that stand for letters."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops, self.text = stops, ""

    def push(self, token: int) -> StopOutcome:
        self.text += chr(97 + token)
        return StopOutcome("", next((stop for stop in self.stops if stop in self.text), None))


@pytest.mark.parametrize("wait", [WaitFor.DEADLINE, WaitFor.NEVER])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ends", ["eos", "stop", "max_tokens", "context"])
def test_every_end_under_every_rule(rule: Selection, wait: WaitFor, ends: str) -> None:
    """Ends that fall on an accepted token, on a drawn one, and on one drawn before the tree."""
    free = plain(ToyRunner(TABLE), request(PROMPT, 40, sampling=sampled(0.8, 3)))
    for length in range(1, 14):
        eos = frozenset({free[length - 1]}) if ends == "eos" else frozenset[int]()
        stops = ("".join(chr(97 + token) for token in free[max(0, length - 2) : length]),) if ends == "stop" else ()
        limit = {"context_length": len(PROMPT) + length} if ends == "context" else {}
        tokens = length if ends == "max_tokens" else 40

        def decode(propose: Propose | None, wanted: SessionRequest) -> tuple[list[int], Finish]:
            with running(ToyRunner(TABLE, eos=eos), propose, stop_text=Letters, **limit) as rig:  # noqa: B023
                return rig.decode(wanted)

        wanted = {"sampling": sampled(0.8, 3), "stops": stops}
        known, end = decode(None, request(PROMPT, tokens, budget=0, **wanted))
        found, finish = decode(scored, request(PROMPT, tokens, wish=wish(rule, wait), **wanted))
        assert found == known
        assert (finish.reason, finish.stop_match) == (end.reason, end.stop_match)
        if ends in ("max_tokens", "context"):
            assert finish.reason is FinishReason.LENGTH
            assert len(found) == length


def records_of(rule: Selection, propose: Propose = scored, count: int = 60, **config: object):
    with running(ToyRunner(TABLE), propose, cost_aware=False, **config) as rig:
        _, finish = rig.decode(request(PROMPT, count, sampling=sampled(1.0, 2), wish=wish(rule)))
        return rig.records, finish, rig.drafter.rows


def test_draw_first_draws_a_token_before_each_tree_and_spends_the_tree_below_it() -> None:
    records, finish, rows = records_of(Selection.DRAW_FIRST)
    trees = [each for each in records if each.focused]
    drawn = [each for each in records[1:] if not each.focused]
    assert all(len(each.tree) == 0 and len(each.delivered) == 1 for each in drawn)
    assert any(len(each.accepted) for each in trees)
    assert len(drawn) - finish.stats.row_passes in (0, 1)  # a last token is drawn plainly: nothing could follow it
    assert rows == finish.stats.row_passes or rows == finish.stats.row_passes - 1  # nor is a tree wanted below it
    assert finish.stats.selections["draw_first"] - len(trees) in (0, 1)


def test_rerank_prunes_a_larger_tree_by_the_targets_row() -> None:
    asked: list[int] = []

    def propose(context: list[int], budget: int) -> DraftTree:
        asked.append(budget)
        return scored(context, budget)

    records, finish, rows = records_of(Selection.RERANK, propose)
    assert set(asked[1:]) == {18}
    trees = [each for each in records if len(each.tree)]
    assert max(len(each.tree) for each in trees) == 6
    assert rows >= finish.stats.row_passes - 1
    assert finish.stats.row_passes >= len(trees)
    assert finish.stats.selections["rerank"] >= len(trees)


def test_retain_holds_the_drawn_token_back_and_needs_no_row_pass() -> None:
    records, finish, _ = records_of(Selection.RETAIN)
    assert finish.stats.row_passes == 0
    assert finish.stats.held_back > 0
    back = [each for each in records if each.drawn is None and each.accepted]
    assert len(back) == finish.stats.held_back
    assert all(len(each.delivered) == len(each.accepted) for each in back)


def test_a_rule_that_waits_never_draws_on_while_the_tree_is_on_its_way() -> None:
    for rule in (Selection.DRAFT, Selection.DRAW_FIRST):
        with running(ToyRunner(TABLE), scored, delay_s=lambda _: 0.02) as rig:
            wanted = request(PROMPT, 80, wish=wish(rule, WaitFor.NEVER))
            tokens, finish = rig.decode(wanted)
            waiting = request(PROMPT, 12, wish=wish(rule, WaitFor.TREE))
            rounds = rig.decode(waiting)[1].stats
        assert tokens == plain(ToyRunner(TABLE), wanted)
        assert finish.stats.fallbacks == {}
        assert rounds.fallbacks == {}
        assert rounds.drafted > 0


def test_a_deadline_of_the_request_stands_over_the_replicas() -> None:
    with running(ToyRunner(TABLE), scored, delay_s=lambda _: 0.03, draft_deadline_ms=1.0, suspend_after=1000) as rig:
        patient = rig.decode(request(PROMPT, 12, wish=wish(Selection.DRAFT, deadline_s=5.0)))[1].stats
        hasty = rig.decode(request(PROMPT, 12, wish=wish(Selection.DRAFT)))[1].stats
    assert patient.fallbacks == {}
    assert hasty.fallbacks.get("late", 0) > 0


COSTS = PassCosts({1: 0.030, 8: 0.034, 16: 0.040})


def rounds_by(draft_s: float, accepted: int = 2, rounds: int = 60) -> Counter[Selection]:
    """What `auto` takes where rounds last as the paper says: one after the other, or overlapped."""
    pace, taken = Pace(), Counter[Selection]()
    pace.drafted(draft_s)
    for _ in range(rounds):
        rule = pace.choose(COSTS, 7, loaded=False).rule
        taken[rule] += 1
        first = rule is Selection.DRAW_FIRST
        seconds = (max(draft_s, 0.030) if first else draft_s) + 0.034
        pace.learn(rule, accepted + 1 + first, accepted, seconds)
    return taken


def test_auto_overlaps_a_slow_drafter_and_not_a_fast_one() -> None:
    assert rounds_by(draft_s=0.002) == {Selection.DRAFT: 60}
    assert rounds_by(draft_s=0.030)[Selection.DRAW_FIRST] == 60
    assert rounds_by(draft_s=0.060)[Selection.DRAW_FIRST] == 60


def test_auto_leaves_a_rule_that_does_not_keep_its_promise() -> None:
    """Drafting that is not hidden after all: each round of draw_first waits for a tree of its own."""
    pace = Pace()
    pace.drafted(0.030)
    assert pace.choose(COSTS, 7, loaded=False).rule is Selection.DRAW_FIRST
    for _ in range(20):
        pace.learn(Selection.DRAW_FIRST, 4, 2, 0.030 + 0.030 + 0.034 + 0.030)
    chosen = pace.choose(COSTS, 7, loaded=False)
    assert chosen.rule is Selection.DRAFT
    assert "draw_first" in chosen.reason


def test_auto_overlaps_nothing_under_load_or_before_it_knows() -> None:
    pace = Pace()
    assert pace.choose(COSTS, 7, loaded=False).rule is Selection.DRAFT
    pace.drafted(0.060)
    assert pace.choose(PassCosts.unmeasured(), 7, loaded=False).rule is Selection.DRAFT
    assert pace.choose(COSTS, 7, loaded=True).rule is Selection.DRAFT
    assert pace.choose(COSTS, 7, loaded=False).rule is Selection.DRAW_FIRST


def test_equal_prompts_share_the_first_row() -> None:
    with running(ToyRunner(TABLE)) as rig:
        first = rig.decode(request(PROMPT, 10, budget=0, sampling=sampled(1.0, 1)))
        again = rig.decode(request(PROMPT, 10, budget=0, sampling=sampled(1.0, 1)))
        other_seed = rig.decode(request(PROMPT, 10, budget=0, sampling=sampled(1.0, 2)))
        other_row = rig.decode(request(PROMPT, 10, budget=0, sampling=sampled(0.9, 1)))
        longer = rig.decode(request([*PROMPT, 2], 10, budget=0, sampling=sampled(1.0, 1)))
        assert rig.engine.status().totals.row_hits == 2
    assert [each[1].stats.row_hits for each in (first, again, other_seed, other_row, longer)] == [0, 1, 1, 0, 0]
    assert again[0] == first[0]
    assert other_seed[0] == plain(ToyRunner(TABLE), request(PROMPT, 10, sampling=sampled(1.0, 2)))


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("rule", RULES)
def test_a_drafter_that_is_lost_and_comes_again(rule: Selection, wait: WaitFor) -> None:
    """Lost while a tree is on its way, and again before it is asked; the tokens stay, and drafting resumes."""
    expected = plain(ToyRunner(TABLE), request(PROMPT, 120, sampling=sampled(0.8, 5)))
    with running(ToyRunner(TABLE), scored, delay_s=lambda _: 0.002, draft_deadline_ms=20.0) as rig:
        wanted = request(PROMPT, 120, sampling=sampled(0.8, 5), wish=wish(rule, wait))
        sink = rig.submit(wanted)[1]
        for _ in range(2):
            sink.wait_deltas(8)
            rig.drafter.lose()
            sink.wait_deltas(4)
            rig.drafter.link()
        finish = sink.wait()
    assert sink.all_tokens == expected
    assert finish.stats.fallbacks.get("lost", 0) > 0
    assert len(rig.drafter.opens) >= 2, "it is offered again"
    if wait is not WaitFor.NEVER:  # a target this fast is past every tree that was not waited for
        assert any(len(record.tree) for record in rig.records[-30:]), "drafting goes on after it came again"


@pytest.mark.parametrize("rule", RULES)
def test_clients_that_leave_in_any_phase_of_a_round(rule: Selection) -> None:
    """Every session but the last is cancelled somewhere; nothing of them is left, and nobody feels it."""
    waits = random.Random(3)
    with running(ToyRunner(TABLE), scored, delay_s=lambda _: waits.random() * 0.003, draft_deadline_ms=50.0) as rig:
        stays = request([7, 7], 150, sampling=sampled(1.0, 6), wish=wish(rule))
        last = rig.submit(stays)[1]
        for number in range(20):
            session, sink = rig.submit(request([number % VOCAB], 500, wish=wish(rule, WAITS[number % 3])))
            sink.wait_deltas(1 + number % 4)
            rig.engine.cancel(session)
        last.wait()
    assert last.all_tokens == plain(ToyRunner(TABLE), stays)


def test_the_first_levels_of_a_slow_tree_serve_and_keep_the_drafter_in() -> None:
    """The whole tree takes longer than the deadline, its first levels do not: they serve, and nobody is suspended."""
    with running(ToyRunner(TABLE), scored, delay_s=lambda _: 0.3, draft_deadline_ms=80.0, cost_aware=False) as rig:

        def send(generation: int, updates: Sequence[Update]) -> bool:
            sent = FakeDrafter.send(rig.drafter, generation, updates)
            for update in updates:
                context = rig.drafter.contexts.get(update.session)
                if context and getattr(update, "budget", 0):
                    tree = scored(context, update.budget).first(2)
                    at = rig.drafter.clock()
                    early = TreeArrived(update.session, update.epoch, len(context), tree, at, growing=True)
                    rig.drafter.inbox.post([early])
            return sent

        rig.drafter.send = send  # type: ignore[method-assign]
        tokens, finish = rig.decode(request(PROMPT, 24, wish=wish(Selection.DRAFT)))
    assert tokens == plain(ToyRunner(TABLE), request(PROMPT, 24))
    assert finish.stats.fallbacks == {}
    assert finish.stats.drafted >= finish.stats.rounds - 2


def test_others_do_not_wait_for_a_tree_that_one_session_waits_for_without_end() -> None:
    """Thirty passes of the other, each held for a deadline of five seconds, would outlast the test's patience."""
    with running(ToyRunner(TABLE), lambda context, budget: None, draft_deadline_ms=5000.0) as rig:
        session, sink = rig.submit(request(PROMPT, 50, wish=wish(Selection.DRAFT, WaitFor.TREE)))
        sink.wait_deltas(1)
        rig.decode(request([1], 30, budget=0))
        rig.engine.cancel(session)


def test_waiting_without_end_is_no_stall_of_the_target() -> None:
    """A replica that counted as stalled would be killed for a drafter that hangs, and a request that waits for it."""
    with running(ToyRunner(TABLE), lambda context, budget: None, stall_s=0.1) as rig:
        session, sink = rig.submit(request(PROMPT, 50, wish=wish(Selection.DRAFT, WaitFor.TREE)))
        sink.wait_deltas(1)
        time.sleep(0.3)
        rig.engine.healthy()
        rig.engine.cancel(session)


def test_a_drafter_that_hangs_is_suspended_also_where_only_load_makes_rounds_wait() -> None:
    silent = {"draft_deadline_ms": 50.0, "never_idle_sessions": 1, "suspend_after": 3}
    with running(ToyRunner(TABLE), lambda context, budget: None, **silent) as rig:
        wanted = [request([n], 60, wish=wish(Selection.DRAFT, WaitFor.NEVER)) for n in range(3)]
        sinks = [rig.submit(each)[1] for each in wanted]
        for sink in sinks:
            assert sink.wait().stats.fallbacks["suspended"] > 40


def test_what_is_in_time_is_what_the_request_says() -> None:
    """Trees take longer than the replica would wait, and less than the request does: now and then one is late."""
    frames = itertools.count()

    def delay_s(_: object) -> float:
        return 0.3 if next(frames) % 5 == 4 else 0.03

    config = {"draft_deadline_ms": 5.0, "suspend_after": 2}
    with running(ToyRunner(TABLE), scored, delay_s=delay_s, **config) as rig:
        _, finish = rig.decode(request(PROMPT, 60, wish=wish(Selection.DRAFT, deadline_s=0.15)))
    assert finish.stats.fallbacks["late"] > 2
    assert finish.stats.fallbacks.keys() == {"late"}


def test_a_row_found_is_counted_once_however_long_its_turn_waits() -> None:
    with running(ToyRunner(TABLE), scored, delay_s=lambda _: 0.03, draft_deadline_ms=200.0) as rig:
        rig.decode(request([1], 5, budget=0))
        sink = rig.submit(request(PROMPT, 40, wish=wish(Selection.DRAFT)))[1]
        sink.wait_deltas(3)
        assert [rig.decode(request([1], 3, budget=0))[1].stats.row_hits for _ in range(3)] == [1, 1, 1]
        sink.wait()
        assert rig.engine.status().totals.row_hits == 3


@pytest.mark.parametrize("rule", RULES)
def test_replies_and_totals_count_rounds_alike(rule: Selection) -> None:
    with running(ToyRunner(TABLE), scored) as rig:
        rig.decode(request([1], 5, budget=0))
        counted = Counter[str]()
        for prompt in ([1], PROMPT):
            stats = rig.decode(request(prompt, 30, wish=wish(rule)))[1].stats
            counted += Counter(stats.selections)
        totals = rig.engine.status().totals
        assert {**counted, "plain": counted["plain"] + 5} == totals.selections
