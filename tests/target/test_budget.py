"""The budget that is chosen: against every fixed one in a model of costs, and what it may not do."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from paceline.runtime.costs import PassCosts
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.shape import scheduled_shape
from paceline.speculation.tree import DraftTree
from paceline.target.allowance import HELD_UP, MOST, SHARE, Allowance
from paceline.target.budget import Budgets
from paceline.target.context import Context
from paceline.target.fallback import Fallback
from paceline.target.gains import MOST_NODES, SIZES, Gains, means_beside
from paceline.target.grant import Grant
from paceline.target.line import Line
from paceline.target.load_times import ANEW, BEGIN, LoadTimes
from paceline.target.plan import Load
from paceline.target.request import DraftWish
from paceline.target.session_budget import FIRST_PAUSE, LONGEST_PAUSE, Kind, Offered, SessionBudget
from paceline.target.turn import Turn
from paceline.target.waits import Waits
from target import drafters
from target.budget_sim import Quality, SimSession, World, session, simulate, wish
from target.rig import plain, random_table, request, running, sampled
from target.test_rules import scored

CPU = PassCosts({1: 0.025, 2: 0.027, 4: 0.031, 8: 0.041, 12: 0.053, 16: 0.064, 24: 0.088, 32: 0.11})
BUMPY = PassCosts({1: 0.025, 2: 0.045, 3: 0.047, 4: 0.033, 5: 0.05, 8: 0.036, 12: 0.07, 16: 0.06, 24: 0.1, 32: 0.1})
FLAT = PassCosts({1: 0.01, 8: 0.0104, 16: 0.011, 32: 0.012})
STEEP = PassCosts({tokens: 0.01 + 0.00015 * max(tokens - 16, 0) for tokens in range(1, 257)})
FIXED = (0, 2, 4, 8, 32)  # the drafters of most worlds have 8 levels


def steady(chance: float) -> Quality:
    return lambda position: chance


def bursts(position: int) -> float:
    return 0.95 if position // 40 % 3 == 2 else 0.05


RIGHT, WRONG, GOOD, HALF, POOR = (steady(chance) for chance in (1.0, 0.0, 0.8, 0.5, 0.15))
SUFFIX, MODEL = {"fixed_s": 0.001}, {"fixed_s": 0.002, "level_s": 0.004}

WORLDS = {
    "right": World(CPU, [RIGHT], 0.9, **SUFFIX),
    "right, does not say": World(CPU, [RIGHT], -1.0, **SUFFIX),
    "right, levels cost": World(CPU, [RIGHT], 0.9, **MODEL),
    "right, bumpy": World(BUMPY, [RIGHT], 0.9, **SUFFIX),
    "right, flat": World(FLAT, [RIGHT], 0.9, **SUFFIX),
    "sure and wrong": World(CPU, [WRONG], 0.9, **SUFFIX),
    "sure and wrong, levels cost": World(FLAT, [WRONG], 0.9, **MODEL),
    "good": World(CPU, [GOOD], **SUFFIX),
    "good, levels cost": World(CPU, [GOOD], **MODEL),
    "half, bumpy": World(BUMPY, [HALF], **MODEL),
    "poor": World(CPU, [POOR], **SUFFIX),
    "bursts": World(CPU, [bursts], **SUFFIX),
    "bursts that it does not know of": World(BUMPY, [bursts], 0.6, **SUFFIX),
    "unlike sessions": World(CPU, [steady(0.9), steady(0.1), HALF, WRONG], **SUFFIX),
    "slower than the table": World(CPU, [GOOD], slower=1.7, overhead_s=0.01, **MODEL),
}


SHARED = {  # with a drafter that takes the target's cores while a pass runs
    "good": World(CPU, [GOOD], beside_s=0.015, leftover=1.3, **MODEL),
    "half": World(CPU, [HALF], beside_s=0.015, leftover=1.6, **MODEL),
    "wrong": World(CPU, [WRONG], 0.9, beside_s=0.015, leftover=1.6, **MODEL),
}


def share_of_best(world: World, sessions: int, tokens: int) -> float:
    """Of the best fixed budget's tokens per second, that `auto` gives."""
    best = max(simulate(world, budget, sessions, tokens).rate for budget in FIXED)
    return simulate(world, "auto", sessions, tokens).rate / best


@pytest.mark.parametrize("sessions", [1, 4, 16])
@pytest.mark.parametrize("name", WORLDS)
def test_auto_is_near_the_best_fixed_budget(name: str, sessions: int) -> None:
    assert share_of_best(WORLDS[name], sessions, 160 if sessions < 16 else 60) >= 0.9


@pytest.mark.parametrize("sessions", [1, 4, 16])
@pytest.mark.parametrize("name", SHARED)
def test_auto_is_near_the_best_fixed_budget_where_drafting_slows_passes(name: str, sessions: int) -> None:
    assert share_of_best(SHARED[name], sessions, 640 if sessions < 16 else 240) >= 0.9


@pytest.mark.parametrize("sessions", [1, 2, 8])
def test_what_drafting_may_lose_is_bounded(sessions: int) -> None:
    """Whatever it promises: steps with trees take far longer than is known, and the trees are wrong."""
    world = World(FLAT, [WRONG], 0.9, leftover=3.0, beside_s=0.02, **SUFFIX)
    for tokens in (100, 400, 1600 // sessions):
        lost_s = simulate(world, "auto", sessions, tokens).seconds - simulate(world, 0, sessions, tokens).seconds
        steps = MOST / sessions + HELD_UP + SHARE * tokens + 10  # ten until plain ones have been measured
        assert lost_s <= steps * 0.01


def test_an_allowance_that_is_used_up_comes_back() -> None:
    allowance = Allowance()
    for _ in range(int(MOST)):
        allowance.tried(4, 4, 0.02, 0.01)
    assert not allowance.left
    for _ in range(math.ceil(MOST / SHARE)):
        allowance.stepped(4)
    assert allowance.left
    for _ in range(math.ceil(MOST / (4 * HELD_UP)) + 1):
        allowance.tried(4, 4, 100.0, 0.01)  # something else held the step up
    assert not allowance.left
    allowance.tried(4, int(2 * MOST), 0.01, 0.01)  # what drafting gains counts for it
    assert allowance.left


def test_a_sampled_tree_s_size_does_not_know_what_others_have_lost() -> None:
    def sizes(lost: bool) -> list[int]:
        budgets, one = Budgets(FLAT), session(WORLDS["good"], 0, 200, wish("auto", Proposal.SAMPLED))
        budgets.times.stepped(1, 1, 0.01, asked=False)
        for _ in range(int(MOST) * lost):
            budgets.times.accounted(1, 1, 0.05, tried=True)
        found = []
        for number in range(30):
            budgets.begin([one], Load(0.025 * number, 1, 0, 64))  # type: ignore[list-item]
            found.append(one.grant.nodes)
            turn = Turn(one, 1, 1, one.tree(one.grant.nodes, WORLDS["good"]))  # type: ignore[arg-type]
            budgets.offered([turn], 0.025 * number + 0.002)
            one.context.append([0, 0])
            one.rounds += 1
            budgets.settled(turn, 1 if len(turn.tree) else 0)
            budgets.stepped([turn], 0.01)
        return found

    assert sizes(lost=True) == sizes(lost=False)
    assert max(sizes(lost=True)) > 0


def test_a_sampled_tree_s_size_does_not_know_who_has_drafted_before() -> None:
    """Neither how many may begin to draft, nor when a step is plain to see what it takes."""

    def sizes(drafted: bool) -> list[int]:
        budgets = Budgets(STEEP)
        sessions = [session(WORLDS["good"], number, 200, wish("auto", Proposal.SAMPLED)) for number in range(16)]
        budgets.times.stepped(16, 16, STEEP.seconds(16) or 0.0, asked=False)
        for _ in range(ANEW * drafted):
            budgets.times.planned(16, drafting=16)
        budgets.begin(sessions, Load(0.0, 16, 0, 64))  # type: ignore[arg-type]
        return [each.grant.nodes for each in sessions]

    assert sizes(drafted=True) == sizes(drafted=False)
    assert min(sizes(drafted=False)) > 0


def test_a_step_without_a_pass_tells_nothing() -> None:
    """All its rows are held, as after a prompt that is cached: it takes no time, which says nothing of passes."""
    budgets = Budgets(FLAT)
    one = session(WORLDS["good"], 0, 200, wish("auto"))
    budgets.begin([one], Load(0.0, 1, 0, 64))  # type: ignore[list-item]
    known = budgets.times.seconds(1, 8).tolist()
    budgets.stepped([Turn(one, 1, 0)], 0.0001)  # type: ignore[arg-type]
    assert budgets.times.seconds(1, 8).tolist() == known
    budgets.stepped([Turn(one, 1, 1)], 0.03)  # type: ignore[arg-type]
    assert budgets.times.seconds(1, 8).tolist() != known


def test_what_the_best_budget_is_differs() -> None:
    """Else the test above would be of little use."""

    def best(name: str, sessions: int) -> int:
        return max(FIXED, key=lambda budget: simulate(WORLDS[name], budget, sessions, 80).rate)

    found = [best("right, flat", 1), best("good, levels cost", 1), best("good, levels cost", 8), best("half, bumpy", 1)]
    assert len(set(found)) >= 3
    assert 0 in found


def test_zero_is_reached_and_left_again() -> None:
    late = World(CPU, [lambda position: float(position >= 100)], 0.9, **MODEL)
    run = simulate(late, "auto", 1, 200)
    nodes = run.nodes[0]
    idle = nodes.index(0)
    assert idle < 12
    assert sum(each > 0 for each in nodes[idle:80]) == 0, "while it is wrong"
    assert run.probes >= 3
    assert min(nodes[-5:]) >= 4
    assert len(nodes) < 100 + LONGEST_PAUSE + 8 + 100 / 4
    assert any("followed" in reason for reason in run.reasons)
    assert "plain pays more" in run.reasons[idle]
    assert all(run.reasons)


def test_trees_that_are_only_followed_become_rare_and_come_one_at_a_time() -> None:
    """However many sessions rest: beside them the drafter works no more than beside one."""
    for count in (1, 4):
        run = simulate(World(CPU, [WRONG], 0.9, **SUFFIX), "auto", count, 400)
        steps = [run.reasons[first : first + count] for first in range(0, len(run.reasons), count)]
        asking = [[number for number, each in enumerate(step) if "followed" in each] for step in steps]
        asked = [at for at, step in enumerate(asking) if step]
        gaps = np.diff(asked).tolist()
        assert gaps[0] <= 2 * FIRST_PAUSE
        assert set(gaps[-3:]) == {LONGEST_PAUSE}
        assert {len(step) for step in asking} == {0, 1}
        assert {number for step in asking for number in step} == set(range(count)), "each has its turn"


def test_a_session_that_begins_knows_what_others_were_offered() -> None:
    budgets = Budgets(CPU)
    simulate(World(CPU, [WRONG], 0.9, **MODEL), "auto", 1, 60, budgets)
    run = simulate(World(CPU, [WRONG], 0.9, **MODEL), "auto", 1, 60, budgets)
    assert set(run.nodes[0]) == {0}


def test_trees_grow_where_they_are_right_and_load_shrinks_them() -> None:
    deep = World(PassCosts({1: 0.01, 128: 0.012}), [RIGHT], 0.9, depth=64, **SUFFIX)
    assert max(simulate(deep, "auto", 1, 400).nodes[0]) == MOST_NODES
    load = [max(simulate(World(CPU, [GOOD], **SUFFIX), "auto", count, 80).nodes[0][-10:]) for count in (1, 16)]
    assert load[0] > load[1]


def test_the_same_world_gives_the_same_choices() -> None:
    world = WORLDS["bursts"]
    assert simulate(world, "auto", 4, 80) == simulate(world, "auto", 4, 80)


def test_a_wait_that_was_too_long_is_tried_again() -> None:
    """A drafter that answers slowly at first."""
    slow, quick = World(FLAT, [GOOD], fixed_s=0.06), World(FLAT, [GOOD], **SUFFIX)
    budgets = Budgets(FLAT)
    assert simulate(slow, "auto", 1, 60, budgets).nodes[0][-20:] == [0] * 20
    nodes = simulate(quick, "auto", 1, 800, budgets).nodes[0]
    assert min(nodes[-20:]) > 0


def test_a_new_load_begins_with_the_waits_of_a_lighter_one() -> None:
    """Four sessions do not find out anew that waiting pays for none of the usual sizes."""
    slow, budgets = World(FLAT, [GOOD], fixed_s=0.06), Budgets(FLAT)
    alone = simulate(slow, "auto", 4, 40)
    simulate(slow, "auto", 1, 60, budgets)
    after = simulate(slow, "auto", 4, 40, budgets)
    largest = [max(each for nodes in run.nodes for each in nodes) for run in (alone, after)]
    assert largest[0] >= 8
    assert largest[1] < 8


def test_steps_beside_a_tree_that_is_only_followed_tell_nothing_of_others() -> None:
    budgets = Budgets(FLAT)
    one = session(WORLDS["good"], 0, 200, wish("auto"))
    budgets.begin([one], Load(0.0, 1, 0, 64))  # type: ignore[list-item]
    step = Turn(one, 1, 1, DraftTree.empty())  # type: ignore[arg-type]
    budgets.stepped([step], 0.03)
    known = budgets.times.seconds(1, 8).tolist()
    assert one.budget is not None
    one.budget.followed = Offered(len(one.context), 8)
    budgets.stepped([step], 0.09)
    assert budgets.times.seconds(1, 8).tolist() == known
    one.budget.followed = Offered(len(one.context), 8, DraftTree.empty())  # it has come
    budgets.stepped([step], 0.09)
    assert budgets.times.seconds(1, 8).tolist() != known


def test_a_sampled_tree_s_size_does_not_depend_on_what_was_drawn() -> None:
    """Other tokens and fewer nodes, with as many accepted and passes in proportion, are followed by the same sizes."""
    even = PassCosts({size: 0.01 + 0.002 * size for size in (1, 8, 32, 128)})

    def sizes(tree_of: object, accepted_of: object) -> list[int]:
        budgets, found = Budgets(even), []
        one = session(WORLDS["good"], 0, 200, wish("auto", Proposal.SAMPLED))
        for number in range(60):
            budgets.begin([one], Load(0.025 * number, 1, 0, 64))  # type: ignore[list-item]
            found.append(one.grant.nodes)
            tree = tree_of(number, one.grant.nodes)  # type: ignore[operator]
            turn = Turn(one, 1, 1, tree)  # type: ignore[arg-type]
            budgets.offered([turn], 0.025 * number + 0.002)
            accepted = accepted_of(number) if len(tree) else 0  # type: ignore[operator]
            one.context.append([0] * (accepted + 1))
            one.rounds += 1
            budgets.settled(turn, accepted)
            budgets.stepped([turn], 0.01 + 0.002 * turn.tokens)
        return found

    def drawn(seed: int):
        def tree(number: int, nodes: int) -> DraftTree:
            generator = np.random.default_rng([seed, number])
            shape = scheduled_shape(nodes, 8).first(max(1, nodes - int(generator.integers(0, 2))) if nodes else 0)
            tokens = generator.integers(0, 10**6, len(shape))
            rows = [None] * (len(shape) + 1)
            return DraftTree.build(tokens.tolist(), shape.parents.tolist(), shape.log_probs.tolist(), rows)

        return tree

    for accepted in (lambda number: 2 * (number < 30), lambda number: 3, lambda number: int(number > 40)):
        first, second = sizes(drawn(1), accepted), sizes(drawn(2), accepted)
        assert first == second
        assert len(set(first)) > 1


def gains_after(rounds: int, drawn: DraftTree, cut_to: int, depth: int = 64) -> tuple[int, list[float]]:
    """Largest size that a session knows something of after rounds of trees cut to so many nodes; tokens by size."""
    budgets, one = Budgets(FLAT), session(WORLDS["good"], 0, 200, wish("auto"))
    one.came, one.useful_depth = drawn, depth
    for number in range(rounds):
        budgets.begin([one], Load(0.025 * number, 1, 0, 64))  # type: ignore[list-item]
        one.grant = Grant(8)
        turn = Turn(one, 1, 1, drawn.first(cut_to))  # type: ignore[arg-type]
        budgets.offered([turn], 0.025 * number + 0.002)
        one.context.append([VOCAB])
        one.rounds += 1
        budgets.settled(turn, 0)
    assert one.budget is not None
    return one.budget.gains.largest, one.budget.gains.means().tokens.tolist()


def test_a_tree_that_load_has_cut_says_nothing_of_larger_ones() -> None:
    chain = DraftTree.build([1] * 8, range(-1, 7))
    assert gains_after(3, chain, cut_to=2)[0] == 8
    assert gains_after(3, chain.first(2), cut_to=2)[0] == MOST_NODES, "the drafter had no more"


def test_a_round_that_has_no_use_for_a_tree_says_nothing_of_trees() -> None:
    chain = DraftTree.build([1] * 8, range(-1, 7))
    assert gains_after(3, chain, cut_to=0, depth=0) == (0, Gains(0.9).means().tokens.tolist())
    assert gains_after(3, chain, cut_to=0)[0] > 0


def test_a_tree_that_is_followed_is_judged_when_it_is_whole() -> None:
    """Not by its first levels, which the next token may come after."""
    budgets, one = Budgets(FLAT), session(WORLDS["good"], 0, 200, wish("auto"))
    budgets.begin([one], Load(0.0, 1, 0, 64))  # type: ignore[list-item]
    assert one.budget is not None
    one.grant, one.budget.followed = Grant(0, probe=8), Offered(len(one.context), 8)
    base, chain = len(one.context), DraftTree.build([7] * 8, range(-1, 7))
    for growing, nodes in ((True, 1), (True, 2), (False, 8)):
        budgets.arrived(one, chain.first(nodes), base, growing=growing)  # type: ignore[arg-type]
        one.context.append([7, 7])
        budgets.settled(Turn(one, 1, 1), 0)  # type: ignore[arg-type]
        assert one.budget.followed is not None
    one.context.append([8])
    budgets.settled(Turn(one, 1, 1), 0)  # type: ignore[arg-type]
    assert one.budget.followed is None
    tokens = dict(zip(SIZES.tolist(), one.budget.gains.means().tokens.tolist(), strict=True))
    assert tokens[6] > 4, "six of its eight nodes were right"


def test_a_tree_that_is_waited_for_takes_the_place_of_one_that_has_not_come() -> None:
    held = SessionBudget(Kind(), shares=True)
    held.followed = Offered(3, 8)
    held.drafts(may_look=True)
    assert held.followed is None, "the drafter leaves it unfinished, and the next look would wait for it"
    held.followed = came = Offered(3, 8, DraftTree.build([1], [-1]))
    held.drafts(may_look=True)
    assert held.followed is came


# -- through the engine ------------------------------------------------------------------------------------------------

VOCAB = 16
TABLE = random_table(VOCAB, seed=5)
PROMPT = [3, 1, 4, 1, 5]
RULES = [Selection.DRAFT, Selection.RETAIN, Selection.RERANK, Selection.DRAW_FIRST, Selection.AUTO]


def auto(rule: Selection = Selection.DRAFT, wait: WaitFor = WaitFor.DEADLINE, **fields: object) -> DraftWish:
    return DraftWish(MOST_NODES, selection=rule, wait=wait, auto=True, **fields)  # type: ignore[arg-type]


def measured(costs: PassCosts, share: float = 0.02) -> ToyRunner:
    """A table model whose passes take a share of those costs."""
    scaled = PassCosts({size: share * seconds for size, seconds in costs.seconds_by_size.items()})
    runner = ToyRunner(TABLE, before_execute=lambda plan: time.sleep(scaled.seconds(plan.tokens) or 0.0))
    runner.costs = scaled
    return runner


@pytest.mark.parametrize("proposal", [Proposal.RANKED, Proposal.COUPLED])
@pytest.mark.parametrize("wait", list(WaitFor))
@pytest.mark.parametrize("rule", RULES)
def test_equal_to_plain(rule: Selection, wait: WaitFor, proposal: Proposal) -> None:
    requests = [
        request(PROMPT[:n], 60, sampling=sampled(0.9, n), wish=auto(rule, wait, proposal=proposal)) for n in (2, 3, 5)
    ]
    expected = [plain(ToyRunner(TABLE), each) for each in requests]
    with running(measured(CPU), scored, never_idle_sessions=2) as rig:
        sinks = [rig.submit(each)[1] for each in requests]
        finishes = [sink.wait() for sink in sinks]
    assert [sink.all_tokens for sink in sinks] == expected
    for finish in finishes:
        assert 0 < sum(finish.stats.budgets.values()) <= finish.stats.rounds


def test_a_drafter_that_is_wrong_is_dropped_and_one_that_is_right_taken_up() -> None:
    wanted = request(PROMPT, 160, wish=auto())
    reply = plain(ToyRunner(TABLE), wanted)
    right, wrong = drafters.oracle(PROMPT, reply), drafters.accepting(PROMPT, reply, VOCAB, 0)

    def propose(context: list[int], budget: int) -> DraftTree:
        return right(context, budget) if len(context) > 80 else wrong(context, budget)

    with running(measured(CPU, 0.1), propose) as rig:
        tokens, finish = rig.decode(wanted)
        records, totals = rig.records, rig.engine.status().totals
    assert tokens == reply
    assert finish.stats.budgets[0] > 10
    assert finish.stats.accepted > 20
    assert records[-2].budget > 0
    idle = [each for each in records[1:] if each.budget == 0]
    assert all(each.budget_reason and each.rule == "plain" and not each.fallback for each in idle)
    assert all("tokens/s" in each.budget_reason for each in records[3:])
    assert totals.budgets == finish.stats.budgets
    assert totals.budget_reason == records[-1].budget_reason


def test_where_nobody_drafts_the_drafter_does_not_read_new_prompts_and_still_learns_the_replies() -> None:
    wanted = request(PROMPT, 80, wish=auto())
    reply = plain(ToyRunner(TABLE), wanted)
    with running(measured(CPU, 0.1), drafters.accepting(PROMPT, reply, VOCAB, 0)) as rig:
        rig.decode(wanted)
        assert len(rig.drafter.opens[0].context) == len(PROMPT), "opened while the prompt is read"
        first = len(rig.drafter.opens)
        for _ in range(6):
            assert rig.decode(replace(wanted, max_tokens=2))[0] == reply[:2]
        named = replace(wanted, wish=DraftWish(4), max_tokens=3)
        rig.decode(named)  # its frame takes the last words of the one before along
        opens = rig.drafter.opens[first:]
        lessons = [each for each in opens if each.budget == 0 and len(each.context) == len(PROMPT) + 2]
        assert lessons, "at most every fourth is tried"
        for each in lessons:
            assert each.context.tolist() == [*PROMPT, *reply[:2]]
            assert (each.learn, each.prompt_length) == (True, len(PROMPT))
        assert [len(each.context) for each in opens].count(len(PROMPT)) == 1, "that which names its budget"
        count = len(rig.drafter.opens)
        for silent in (replace(wanted, learn=False), replace(wanted, wish=DraftWish(0)), replace(wanted, learn=False)):
            rig.decode(replace(silent, max_tokens=2))
        rig.decode(named)
        assert not [each for each in rig.drafter.opens[count:] if each.budget == 0 and len(each.context) > len(PROMPT)]


def test_the_first_tree_of_a_session_that_the_drafter_has_not_heard_of_is_not_waited_for() -> None:
    """It comes after the prompt; others would wait with it."""
    wanted = request(PROMPT, 200, wish=auto())
    reply = plain(ToyRunner(TABLE), wanted)
    right, wrong, good = drafters.oracle(PROMPT, reply), drafters.accepting(PROMPT, reply, VOCAB, 0), [False]

    def propose(context: list[int], budget: int) -> DraftTree:
        return (right if good[0] else wrong)(context, budget)

    with running(measured(CPU, 0.1), propose) as rig:
        rig.decode(replace(wanted, max_tokens=80))
        good[0] = True
        rig.decode(wanted)
        records = rig.records[-len(rig.records) // 2 :]
        opened = rig.drafter.opens[-1]
        assert len(opened.context) > len(PROMPT)
        assert opened.budget == 8
        first = next(each for each in rig.records if each.budget > 0 and each.position > len(opened.context))
        assert first.fallback is None
        assert not any(each.fallback for each in records)
        assert len(records[-2].accepted) > 2


@pytest.mark.parametrize(("wait_s", "reads"), [(0.009, False), (0.005, True)])
def test_prompts_are_read_late_only_where_drafting_is_well_ahead(wait_s: float, reads: bool) -> None:
    """A drafter on the same cores slows everybody while it reads the prompt of a session that it did not hear of."""
    budgets, one = Budgets(PassCosts({1: 0.01, 256: 0.01})), session(WORLDS["good"], 0, 200, wish("auto"))
    one.drafting.unheard = True
    simulate(World(FLAT, [RIGHT], 1.0, depth=1), "auto", 1, 400, budgets)
    for _ in range(40):
        budgets.times.waits(1).learn(1, wait_s)
    budgets.begin([one], Load(0.0, 1, 0, 1))  # type: ignore[list-item]
    lead = 2 * 0.01 / (0.01 + wait_s)  # of trees of one node, which is right
    assert (lead > 1.1) == reads
    assert lead > 1.02
    assert (one.grant.probe > 0) == reads, one.grant.reason


def test_without_measured_passes_the_usual_budget_is_asked_for() -> None:
    asked: list[int] = []

    def propose(context: list[int], budget: int) -> DraftTree:
        asked.append(budget)
        return DraftTree.empty()

    with running(ToyRunner(TABLE), propose) as rig:
        rig.decode(request(PROMPT, 10, wish=auto()))
        assert set(asked) == {8}
        assert {each.budget_reason for each in rig.records[1:]} == {"passes are not measured"}
        asked.clear()
        rig.decode(request(PROMPT, 10, wish=replace(auto(), budget=3)))
        assert set(asked) == {3}, "max_budget"
        rig.decode(request(PROMPT, 10, wish=replace(auto(), auto=False, budget=5)))
        assert rig.records[-1].budget_reason == ""


# -- parts -------------------------------------------------------------------------------------------------------------


def test_a_line_is_in_proportion_until_something_else_is_seen() -> None:
    line = Line()
    assert not line.known
    assert line.at(np.asarray([1.0, 2.0])).tolist() == [0.0, 0.0]
    for _ in range(5):
        line.learn(2.0, 6.0)
    assert line.at([0.0, 1.0, 4.0]) == pytest.approx([0.0, 3.0, 12.0])
    for _ in range(40):
        line.learn(2.0, 6.0)
        line.learn(4.0, 7.0)
    start, near, far = line.at([0.0, 2.0, 4.0])
    assert 3 < start < 5, "drawn towards the origin"
    assert (near, far) == pytest.approx((6, 7), abs=1)
    assert far < 1.5 * near


@pytest.mark.parametrize(("near", "far"), [(8.0, 2.0), (1.0, 9.0)])
def test_a_line_neither_falls_nor_starts_below_zero(near: float, far: float) -> None:
    line = Line()
    for _ in range(30):
        line.learn(2.0, near)
        line.learn(4.0, far)
    found = line.at(np.linspace(0, 10, 11))
    assert found[0] >= 0
    assert (np.diff(found) >= 0).all()


def test_a_tree_tells_of_its_size_and_of_smaller_ones() -> None:
    gains = Gains(0.9)
    assert gains.largest == 0
    for _ in range(100):
        gains.learn(np.asarray([0, 2, 5]), np.full(7, 0.5), asked=8, whole=False)
    assert gains.largest == 8
    nodes, tokens = (
        dict(zip(SIZES.tolist(), each.tolist(), strict=True)) for each in (gains.means().nodes, gains.means().tokens)
    )
    for size, count, expected in ((1, 1, 1), (2, 2, 1), (3, 3, 2), (6, 6, 3), (8, 7, 3)):
        assert nodes[size] == pytest.approx(count, rel=0.2)
        assert tokens[size] == pytest.approx(expected, rel=0.2)
    promised = dict(zip(SIZES.tolist(), gains.means().promised.tolist(), strict=True))
    further = (promised[8] - promised[6]) / 2
    assert promised[64] == pytest.approx(promised[8] + 56 * further), "further nodes promise what the last ones did"
    assert tokens[64] / promised[64] == pytest.approx(tokens[8] / promised[8]), "and as much of it is kept"
    for _ in range(100):
        gains.learn(np.zeros(0, np.int64), np.zeros(0), asked=8, whole=False)
    assert gains.means().tokens.max() < 0.5, "larger trees are not hoped for where smaller ones bring nothing"


def test_others_tell_what_larger_trees_would_bring() -> None:
    own, others = Gains(0.99), Gains(0.99)
    for _ in range(400):
        own.learn(np.asarray([0]), np.full(4, 0.25), asked=4, whole=False)
        others.learn(np.asarray([0, 1, 6]), np.full(8, 0.375), asked=8, whole=False)
    by_size = dict(zip(SIZES.tolist(), means_beside([own], [others.means()]).tokens[0].tolist(), strict=True))
    assert by_size[4] == pytest.approx(1, rel=0.1)
    assert by_size[8] == pytest.approx(by_size[4] * 3 / 2, rel=0.1)
    assert own.largest == 4


def test_sizes_are_compared_within_trees() -> None:
    """Large trees asked for in bad times and small ones in good times do not make the small ones look better."""
    gains = Gains(1.0)
    for number in range(100):
        gains.learn(
            np.asarray([0, 5] if number % 4 == 0 else [], dtype=np.int64), np.full(8, 0.0625), asked=8, whole=False
        )
        gains.learn(np.asarray([0, 1]), np.full(2, 1.0), asked=2, whole=False)
    nodes, tokens = (
        dict(zip(SIZES.tolist(), each.tolist(), strict=True)) for each in (gains.means().nodes, gains.means().tokens)
    )
    assert tokens[2] == pytest.approx((0.25 + 2) / 2, rel=0.05)
    assert tokens[8] > 1.4 * tokens[2], "twice as many as two nodes, in the same trees"
    assert nodes[8] == pytest.approx(8, rel=0.05)


def test_a_drafter_that_has_no_more_tells_of_larger_trees_too() -> None:
    gains = Gains(1.0)
    for _ in range(50):
        gains.learn(np.asarray([0]), np.full(2, 0.5), asked=8, whole=True)
    nodes, tokens = gains.means().nodes, gains.means().tokens
    assert gains.largest == MOST_NODES
    assert nodes[2:] == pytest.approx(2, abs=0.2)
    assert tokens == pytest.approx(1, abs=0.1)


def test_waits_are_known_by_size_and_ease() -> None:
    waits = Waits()
    assert waits.at(SIZES).tolist() == [0.0] * len(SIZES)
    waits.learn(8, 0.01)
    assert waits.at(SIZES) == pytest.approx([0.01] * len(SIZES))
    for _ in range(60):
        waits.learn(16, 0.03)
    found = dict(zip(SIZES.tolist(), waits.at(SIZES).tolist(), strict=True))
    assert 0.006 < found[8] < 0.01
    assert found[16] == found[64] == pytest.approx(0.03, rel=0.05)
    waits.learn(1, 0.05)
    assert waits.at(SIZES[:3]) == pytest.approx([0.05] * 3)
    assert (np.diff(waits.at(SIZES)) >= 0).all()
    for _ in range(300):
        waits.ease()
    assert waits.at(SIZES).max() < 0.02


@pytest.mark.parametrize(
    ("emitted", "matched"),
    [([], None), ([5], None), ([6], []), ([5, 9], [0]), ([5, 7], [0, 2]), ([5, 7, 1], [0, 2]), ([4], [1])],
)
def test_a_tree_is_followed_until_the_tokens_leave_it(emitted: list[int], matched: list[int] | None) -> None:
    context = Context(np.asarray([1, 2], np.int32), np.zeros(0, np.int32), 10)
    context.append(emitted)
    places = Offered(2, 3, DraftTree.build([5, 4, 7], [-1, -1, 0])).places(context)
    assert (None if places is None else places.tolist()) == matched
    assert Offered(2, 3).places(context) is None


def test_places_of_what_was_accepted() -> None:
    context = Context(np.asarray([1, 2], np.int32), np.zeros(0, np.int32), 10)
    context.append([5, 7, 3])
    offered = Offered(2, 4, DraftTree.build([5, 4, 7, 3], [-1, -1, 0, 2]))
    found = offered.places(context, 2)
    assert found is not None
    assert found.tolist() == [0, 2], "the drawn token is not one of them, though the tree holds it"


def test_a_session_is_what_the_simulation_says_it_is() -> None:
    """The stand-in has the fields that budgets read of a session."""
    one = session(WORLDS["good"], 0, 10, wish(4))
    assert isinstance(one, SimSession)
    Budgets(CPU).begin([one], Load(0.0, 1, 0, 64))  # type: ignore[list-item]
    assert (one.grant.nodes, one.grant.reason, one.budget) == (4, "", None)


def test_steps_with_drafts_are_known_to_be_slower_only_beside_others() -> None:
    """What a drafter on the same cores takes from a pass is not the pass's; a session alone waits for its tree."""
    for sessions, slowed in ((1, 1.0), (4, 1.5)):
        times = LoadTimes(FLAT)
        table_s = float(times.seconds(sessions, 8)[sessions])
        for _ in range(60):
            times.stepped(sessions, sessions, table_s, asked=False)
        plain_s = times.seconds(sessions, 8).tolist()
        for _ in range(60):
            times.stepped(sessions, sessions, 1.5 * table_s, asked=True)
        assert times.slowed(sessions) == pytest.approx(slowed, rel=0.01)
        assert (times.seconds(sessions, 8).tolist() == plain_s) == (sessions > 1)
    for _ in range(400):
        times.rested(4)
    assert times.slowed(4) < 1.1, "it is believed a little less with every step without drafts"


@pytest.mark.parametrize("sessions", [1, 4])
def test_plain_steps_of_several_sessions_are_measured_now_and_then(sessions: int) -> None:
    """Their passes are learned from steps without drafts, which there may be none of; a session alone waits."""
    run = simulate(World(FLAT, [GOOD], **SUFFIX), "auto", sessions, 1000)
    plain_at = [step for step, reason in enumerate(run.reasons[::sessions]) if reason.startswith("a plain step")]
    if sessions == 1:
        assert not plain_at
    else:
        assert plain_at[0] == 0
        assert np.diff(plain_at).max() == ANEW + 1


def test_few_of_many_sessions_begin_to_draft_where_it_is_dear() -> None:
    """What drafting takes at a load is a guess until it was done, and so is what it brings."""

    def drafting(costs: PassCosts) -> list[int]:
        nodes = simulate(World(costs, [RIGHT], **SUFFIX), "auto", 16, 60).nodes
        counts = [sum(each[step] > 0 for each in nodes) for step in range(6)]
        return [count for count in counts if count]

    assert drafting(PassCosts({1: 0.01, 256: 0.0104}))[0] == 16
    first = drafting(STEEP)
    assert first[0] <= BEGIN
    assert all(after <= BEGIN * before for before, after in pairwise(first))
    assert first[-1] > BEGIN


def test_prompts_that_a_drafter_reads_are_not_taken_for_what_trees_take() -> None:
    """The first tree of a session comes late, and the pass beside it takes longer."""
    budgets, one = Budgets(FLAT), session(WORLDS["good"], 0, 200, wish("auto"))
    known: list[object] = []
    for number in range(4):
        budgets.begin([one], Load(float(number), 1, 0, 64))  # type: ignore[list-item]
        assert one.grant.nodes > 0
        tree = one.tree(8, WORLDS["good"]) if number > 1 else DraftTree.empty()
        turn = Turn(one, 1, 1, tree, fallback=None if number > 1 else Fallback.LATE)  # type: ignore[arg-type]
        budgets.offered([turn], number + 0.5)
        one.context.append([1])
        one.rounds += 1
        budgets.settled(turn, 0)
        budgets.stepped([turn], 0.4)
        assert one.budget is not None
        known.append((one.budget.gains.largest, budgets.times.waits(1).at(SIZES).tolist(), budgets.times.plain_s(1)))
    assert known[0] == known[1] == (0, [0.0] * len(SIZES), FLAT.seconds(1))
    assert known[2] != known[1], "it has come"
    assert known[3] != known[2]


def test_a_load_is_drafted_for_seldom_after_some_steps_without() -> None:
    times = LoadTimes(FLAT)
    assert not times.seldom(4)
    for _ in range(25):
        times.planned(4, drafting=0)
    assert times.seldom(4)
    assert times.seldom(7), "the same magnitude"
    assert not times.seldom(8)
    for _ in range(25):
        times.planned(4, drafting=1)
    assert not times.seldom(4)


def test_pauses_of_earlier_sessions_tell_nothing_where_noise_may_come_again() -> None:
    kind = Kind()
    taught = SessionBudget(kind, shares=True)
    for _ in range(4):
        taught.rested()
    assert SessionBudget(kind, shares=True).pause == LONGEST_PAUSE // 2
    alone = SessionBudget(kind, shares=False)
    assert alone.pause == FIRST_PAUSE
    alone.learn(Offered(3, 8), np.asarray([0]), np.full(8, 0.5))
    assert kind.pause == LONGEST_PAUSE
