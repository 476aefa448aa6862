"""Trees cut to what pays, and passes shared out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree
from paceline.target.allot import StepBudget
from paceline.target.calibration import Calibration
from paceline.target.fallback import Fallback
from paceline.target.load_times import LoadTimes
from paceline.target.turn import Turn
from paceline.target.worth import path_probs, worthwhile
from target.rig import plain, random_table, request, running

TREE = DraftTree.build([1, 2, 3, 4], [-1, 0, -1, 2], np.log([0.6, 0.5, 0.3, 0.9]).tolist())  # .6 .3 .3 .27


@dataclass
class FakeSession:
    calibration: Calibration = field(default_factory=Calibration)


def turn(tree: DraftTree = TREE, pending: int = 1) -> Turn:
    return Turn(FakeSession(), pending, pending, tree)  # type: ignore[arg-type]


def costs(*seconds: float) -> PassCosts:
    """Seconds of passes of 1, 2, 3 .. tokens."""
    return PassCosts(dict(enumerate(seconds, 1)))


def times(*seconds: float) -> NDArray[np.float64]:
    """The same, as passes are run."""
    return LoadTimes(costs(*seconds)).seconds(1, 16)


def test_path_probabilities_multiply_along_the_path() -> None:
    assert path_probs(TREE) == pytest.approx([0.6, 0.3, 0.3, 0.27])
    unknown = DraftTree.build([1, 2, 3], [-1, 0, 1])
    assert path_probs(unknown) == pytest.approx([0.5, 0.25, 0.125])
    rounded = DraftTree.build([1, 2], [-1, 0], [-0.1, 5e-4])
    assert path_probs(rounded)[1] <= path_probs(rounded)[0]


def test_nodes_are_taken_while_tokens_per_second_rise() -> None:
    """Rates with 0 to 4 nodes: 1, 1.6/1.2, 1.9/1.4, 2.2/1.7, 2.47/2.1."""
    (cut,) = worthwhile([turn()], times(1.0, 1.2, 1.4, 1.7, 2.1))
    assert cut.tree.tokens.tolist() == [1, 2]
    assert cut.fallback is None


def test_time_that_went_by_before_the_pass_counts() -> None:
    """Rates with 0 to 4 nodes and 2 seconds of waiting: 1/3, 1.6/3.2, 1.9/3.4, 2.2/3.7, 2.47/4.1."""
    (cut,) = worthwhile([turn()], times(1.0, 1.2, 1.4, 1.7, 2.1), 2.0)
    assert cut.tree is TREE


def test_a_tree_that_does_not_pay_is_dropped_and_counted() -> None:
    (cut,) = worthwhile([turn()], times(1.0, 2.0, 3.0, 4.0, 5.0))
    assert len(cut.tree) == 0
    assert cut.fallback is Fallback.LOAD


def test_equal_costs_keep_everything() -> None:
    assert worthwhile([turn()], times(*[1.0] * 5))[0].tree is TREE


def test_padding_is_part_of_the_cost() -> None:
    """Passes of 2 to 4 tokens cost more than 5, so all of them run as 5: four nodes for the price of one."""
    assert worthwhile([turn()], times(1.0, 1.9, 1.9, 1.9, 1.4))[0].tree is TREE


def test_the_best_nodes_win_over_all_sessions() -> None:
    sure = DraftTree.build([7, 8], [-1, 0], np.log([0.99, 0.98]).tolist())
    first, second, plain_one = worthwhile([turn(), turn(sure), turn(DraftTree.empty())], times(*[1.0] * 5, 9.0, 9.0))
    assert first.tree.tokens.tolist() == []
    assert first.fallback is Fallback.LOAD
    assert second.tree is sure
    assert plain_one.fallback is None


def test_a_drafter_that_is_wrong_is_believed_less_and_tried_again() -> None:
    wrong = turn()
    for _ in range(20):
        wrong.session.calibration.learn(1.47, 0)
    assert wrong.session.calibration.factor < 0.1
    measured = times(1.0, 1.2, 1.4, 1.7, 2.1)
    assert worthwhile([wrong], measured)[0].fallback is Fallback.LOAD
    for _ in range(100):
        wrong.session.calibration.learn(0.0, 0)
    assert len(worthwhile([wrong], measured)[0].tree) == 2


def test_the_cut_never_changes_tokens() -> None:
    table = random_table(16, seed=3)
    measured = costs(1e-3, 1.1e-3, 1.3e-3, 1.8e-3, 2e-3, 2.6e-3)
    runner = ToyRunner(table, before_execute=lambda plan: time.sleep(measured.seconds(plan.tokens)))
    runner.costs = measured
    expected = plain(ToyRunner(table), request([1], 100))
    known = [1, *expected]

    def propose(context: list[int], budget: int) -> DraftTree:
        right = known[len(context)] if len(context) < len(known) else 0
        return DraftTree.build(
            [(right + 1) % 16, right, right], [-1, -1, 0], np.log([0.5, 0.45, 0.3]).astype(np.float32).tolist()
        )

    with running(runner, propose) as rig:
        tokens, finish = rig.decode(request([1], 100))
    assert tokens == expected
    assert 0 < finish.stats.accepted
    assert finish.stats.drafted < 3 * finish.stats.rounds


def test_draft_shares_and_chunks() -> None:
    budget = StepBudget(step_tokens=32, prefill_chunk=16)
    assert budget.draft_share(decoding=1, drafting=1, reading=0) == 31
    assert budget.draft_share(decoding=4, drafting=2, reading=0) == 14
    assert budget.draft_share(decoding=4, drafting=2, reading=1) == 6
    assert budget.draft_share(decoding=20, drafting=20, reading=0) == 0
    assert budget.draft_share(decoding=30, drafting=1, reading=1) == 0
    assert budget.draft_share(decoding=0, drafting=0, reading=1) == 0
    reading = [turn(DraftTree.empty(), pending=each) for each in (10, 30, 5)]
    assert [each.chunk for each in budget.pack(reading)] == [10, 22]
    packed = budget.pack([turn(), *reading])
    assert [each.chunk for each in packed] == [1, 10, 6]
    assert [each.draws for each in packed] == [True, True, False]
