"""Sessions of the model proposer that come and go: nothing is left, and nobody feels the others."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from drafter import desk
from drafter.desk import VOCAB
from paceline.drafter.messages import Fault
from paceline.drafter.model import ModelProposer
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelRunner
from paceline.runtime.toy import ToyRunner
from paceline.runtime.transformers_runner import load_runner
from support.tiny import tiny_model
from target.rig import random_table


def drive(runner: ModelRunner, sessions: int, seed: int) -> Counter[object]:
    """Faults and trees (None) of that many sessions; the runner must then be as it was."""
    proposer = ModelProposer(runner, "same", max_depth=4, width=4, step_tokens=64, min_path_prob=0.0)
    seen = desk.drive(proposer, sessions, seed)
    runner.kv.check_integrity()
    assert (runner.kv.pages_used, runner.kv.sequences) == (0, 0)
    return seen


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
