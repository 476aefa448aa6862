"""The drafter study: its decoding against plain decoding, its tables against their meaning, and a small run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.runtime.costs import PassCosts
from paceline.runtime.toy import ToyRunner
from paceline.speculation.sampling import SamplingParams
from paceline.study.drafters import DrafterBench, DrafterSettings, FusedDrafter, ModelDrafter, SuffixDrafter, serve
from paceline.study.drafters_report import result_rows
from paceline.study.parts import Parts
from paceline.study.reply import plain_replies
from paceline.study.study_drafters import drafter_report

RNG = np.random.default_rng(5)
TABLE = RNG.dirichlet(np.full(12, 0.3), size=12) * 0.98 + 0.02 / 12
OTHER = 0.6 * TABLE + 0.4 * RNG.dirichlet(np.full(12, 0.3), size=12)
PROMPTS = [[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3], [4, 5, 6]]
KINDS = ["copying", "copying", "lists"]
COSTS = PassCosts({1: 1.0, 8: 2.0, 17: 4.0})
SETTINGS = DrafterSettings(
    budgets=(2, 4), strengths=(1.0, 2.0, 1e6), strength_budget=4, new_tokens=60, max_depth=3, width=3
)


def test_coupled_trees_follow_the_noise_of_the_draws() -> None:
    """A drafter equal to the target, at strength 1, has every draw as its first child."""
    runner = ToyRunner(TABLE)
    bench = DrafterBench(runner, PROMPTS, SETTINGS)
    same = ModelDrafter("same", ToyRunner(TABLE), 3)
    sure = bench.cell(same, 1, 1.0, 1.0)["replies"]
    assert all(each["tokens"] == 60 for each in sure)
    assert sum(each["rounds"] for each in sure) == 3 * 30, "one token accepted and one drawn"
    blind = bench.cell(same, 1, 1.0, 1e6)["replies"]
    assert sum(each["rounds"] for each in blind) > 3 * 32


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rounds_and_accepted_tokens_add_up(temperature: float) -> None:
    bench = DrafterBench(ToyRunner(TABLE), PROMPTS, SETTINGS)
    timed = ToyRunner(OTHER)
    timed.costs = COSTS
    for drafter in (SuffixDrafter("suffix"), ModelDrafter("model", timed, 3), FusedDrafter("fused", timed, 3)):
        cell = bench.cell(drafter, 4, temperature, 2.0)
        replayed = DrafterBench(ToyRunner(TABLE), PROMPTS, replace(SETTINGS, replay=True))
        assert replayed.cell(drafter, 4, temperature, 2.0)["replies"] == cell["replies"]
        for each in cell["replies"]:
            assert each["tokens"] == each["rounds"] + each["accepted"] == 60
            assert len(each["sizes"]) == each["rounds"]
        assert cell["draft_s"] >= 0
        assert sum(each["accepted"] for each in cell["replies"]) > 0


def test_agreement_of_a_drafter_that_is_the_target_and_of_one_that_knows_nothing() -> None:
    runner = ToyRunner(TABLE)
    bench = DrafterBench(runner, PROMPTS, SETTINGS)
    replies = bench.replies(0.0)
    assert replies == plain_replies(runner, PROMPTS, SamplingParams(), 60)
    assert bench.agreement(ModelDrafter("same", ToyRunner(TABLE), 3), replies) == [[60, 60, 60]] * 3
    drafter = ModelDrafter("other", ToyRunner(np.roll(TABLE, 1, axis=1)), 3)
    assert all(first == 0 for _, first, _ in bench.agreement(drafter, replies))
    uniform = bench.agreement(ModelDrafter("uniform", ToyRunner(np.full((12, 12), 1 / 12)), 3), replies)
    for reply, (count, first, among) in zip(replies, uniform, strict=True):
        assert (count, first, among) == (60, reply.count(0), sum(token < 4 for token in reply)), "ties to the lowest id"


def test_a_store_that_served_knows_more_than_a_sessions_own_text() -> None:
    runner = ToyRunner(TABLE)
    bench = DrafterBench(runner, PROMPTS, SETTINGS)
    told: list[int] = []
    texts = serve(runner, [[7, 8], [9]], 500, 1, told.append, at_once=4, reply_tokens=50)
    assert 500 <= sum(map(len, texts)) == told[-1] < 700
    replies = bench.replies(0.0)
    own, warm = (bench.agreement(each, replies) for each in (SuffixDrafter("own"), SuffixDrafter("warm", texts)))
    assert sum(first for _, first, _ in warm) > sum(first for _, first, _ in own)


def test_a_fused_drafter_weighs_looks_against_the_targets_pass() -> None:
    """The model is the target: with passes that cost nothing it is asked again and again, with dear ones hardly."""
    target = ToyRunner(TABLE)
    target.costs = COSTS
    bench = DrafterBench(target, PROMPTS, SETTINGS)
    rounds = {}
    for second in (0.001, 10.0):
        model = ToyRunner(TABLE)
        model.costs = PassCosts({1: second, 8: second})
        cell = bench.cell(FusedDrafter("fused", model, 3), 4, 0.0, 1.0)
        rounds[second] = sum(each["rounds"] for each in cell["replies"])
        assert cell["draft_s"] > (second if second < 1 else 0)
    suffix = sum(each["rounds"] for each in bench.cell(SuffixDrafter("suffix"), 4, 0.0, 1.0)["replies"])
    assert rounds[0.001] < rounds[10.0] <= 1.1 * suffix


def test_rows_are_what_they_say() -> None:
    replies = [
        {"tokens": 6, "rounds": 2, "accepted": 4, "sizes": [7, 7]},
        {"tokens": 4, "rounds": 2, "accepted": 2, "sizes": [7, 7]},
        {"tokens": 5, "rounds": 4, "accepted": 1, "sizes": [7, 7, 7, 0]},
    ]
    agreement = [[10, 5, 8], [10, 3, 4], [20, 2, 4]]
    rows = result_rows("x", 7, 0.0, {"replies": replies, "draft_s": 4.0}, agreement, KINDS, COSTS)
    found = {row["category"]: row for row in rows}
    assert list(found) == ["all", "copying", "lists"]
    copying = found["copying"]
    assert (copying["tokens_per_round"], copying["top1"], copying["top4"], copying["prompts"]) == (2.5, 0.4, 0.6, 2)
    assert copying["ceiling"] == 2.5 / 2
    assert copying["speedup"] == 2.5 / (2 + 0.5), "four seconds over eight rounds"
    assert found["lists"]["ceiling"] == 1.25 / (7 / 4)
    assert found["lists"]["low"] is None
    unmeasured = result_rows("x", 7, 0.0, {"replies": replies, "draft_s": 4.0}, agreement, KINDS, PassCosts({}))
    assert unmeasured[0]["speedup"] is None


def test_a_small_study_leaves_everything_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    told: list[str] = []
    drafters = [SuffixDrafter("suffix, own text"), ModelDrafter("toy", ToyRunner(OTHER), 3)]

    def run(target: ToyRunner) -> dict[str, object]:
        parts = Parts(tmp_path, "drafters", {"seed": SETTINGS.seed})
        report = drafter_report(
            target, PROMPTS, KINDS, drafters, COSTS, SETTINGS, {"seed": SETTINGS.seed}, parts, tmp_path, told.append
        )
        report.write(tmp_path)
        return report.as_dict()

    found = run(ToyRunner(TABLE))
    assert json.loads((tmp_path / "drafters.json").read_text()) == json.loads(json.dumps(found))
    results = found["results"]
    assert isinstance(results, list)
    wanted = {"proposer", "budget", "temperature", "category", "tokens_per_round", "top1", "top4", "speedup", "ceiling"}
    assert all(wanted <= set(row) for row in results)
    assert len(results) == 2 * 2 * 2 * 3
    strengths = found["strengths"]
    assert isinstance(strengths, list)
    assert [row["strength"] for row in strengths[:3]] == [1.0, 2.0, "infinity"]
    assert len(strengths) == 2 * 2 * 3
    assert {"machine", "settings", "notes"} <= set(found)
    for name in ("drafters", "drafters_strength"):
        assert {path.suffix for path in tmp_path.glob(f"{name}.*")} == {".json", ".md", ".png", ".svg"}
    assert "toy, budget 4, T 0.7, strength 2.0" in told

    def fails(_: object) -> None:
        raise AssertionError("a finished cell is decoded again")

    assert run(ToyRunner(TABLE, before_execute=fails))["results"] == results
