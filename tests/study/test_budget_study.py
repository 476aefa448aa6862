"""The study of budgets: its arithmetic, and a small run of the whole stack."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.study import study_budget as study_module
from paceline.study.arrivals import in_common, of_decoding
from paceline.study.budget import BudgetSettings, kept_turns
from paceline.study.budget_cli import run_budget
from paceline.study.cli import add_parser
from paceline.study.parts import Parts
from paceline.study.ratios import turned
from paceline.study.report import Report
from paceline.study.study_budget import auto_row, budget_rows, study_budget
from support.fake_stack import Broken, FakeStack
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

SETTINGS = BudgetSettings(sessions=(1, 3), budgets=(0, 4), new_tokens=16, repeats=2, prompt_tokens=48)
PROMPTS = [Prompt(str(number), "all", f"the code is K-0417, {number} two three") for number in range(4)]


def cell(tokens: float, seconds: float, **changes: float) -> dict[str, float]:
    return {"tokens": tokens, "seconds": seconds, "rounds": 10, "emitted": 15, "drafted": 40, "at_zero": 0, **changes}


def test_tokens_count_while_all_replies_are_decoded() -> None:
    first = [(0.0, 1), (1.0, 2), (2.0, 1), (3.0, 4)]
    second = [(1.0, 1), (2.0, 3), (2.5, 1)]
    assert in_common([first]) == (7, 3.0)
    assert in_common([first, second]) == (5, 1.5)


def test_decoding_begins_when_the_prompt_is_read() -> None:
    assert of_decoding([(0.0, 1), (3.0, 2), (4.0, 1)]) == [(3.0, 2), (4.0, 1)]
    assert of_decoding([(0.0, 8)]) == [(0.0, 8)]


def test_every_budget_stands_everywhere_in_the_order() -> None:
    orders = [turned([0, 2, 4, "auto"], repeat) for repeat in range(4)]
    assert all(sorted(map(str, order)) == ["0", "2", "4", "auto"] for order in orders)
    assert [order[0] for order in orders] == [0, 2, 4, "auto"]
    assert orders[1] == [2, 0, "auto", 4], "backwards"


def test_rates_and_the_ratio_to_the_best_fixed_budget() -> None:
    cells = [
        {"0": cell(10, 1.0, at_zero=10), "4": cell(20, 1.0), "auto": cell(19, 1.0, at_zero=5)},
        {"0": cell(10, 1.0, at_zero=10), "4": cell(20, 1.25), "auto": cell(19, 1.25)},
    ]
    plain, fixed, auto = budget_rows(4, cells, SETTINGS)
    assert [row["budget"] for row in (plain, fixed, auto)] == [0, 4, "auto"]
    assert fixed["tokens_per_s"] == pytest.approx(40 / 2.25)
    assert plain["low"] == pytest.approx(plain["high"])
    assert fixed["low"] < fixed["tokens_per_s"] < fixed["high"]
    assert (auto["tokens_per_round"], auto["nodes_per_round"], auto["at_zero"]) == (1.5, 4, 0.25)
    row = auto_row(4, cells, SETTINGS)
    assert (row["sessions"], row["best"], row["repeats"]) == (4, 4, 2)
    assert row["ratio_to_best"] == row["low"] == pytest.approx(0.95)


def test_a_small_run_leaves_a_report_and_goes_on_from_its_parts(tmp_path: Path) -> None:
    model = str(save_tokenizer(tiny_model(tmp_path / "model", vocab=300), byte_level_tokenizer(300)))
    out = tmp_path / "out"

    def study():
        stages: list[str] = []
        report = study_budget(model, "float32", DrafterConfig(), PROMPTS, SETTINGS, out, 1, stages.append)
        report.write(out)
        return report, stages

    report, stages = study()
    assert [(row["sessions"], row["budget"]) for row in report.rows] == [
        (sessions, budget) for sessions in (1, 3) for budget in (0, 4, "auto")
    ]
    assert all(row["tokens_per_s"] > 0 and row["tokens_per_round"] >= 1 for row in report.rows)
    assert [row["nodes_per_round"] for row in report.rows if row["budget"] == 0] == [0, 0]
    written = json.loads((out / "budget.json").read_text())
    assert [row["sessions"] for row in written["auto"]] == [1, 3]
    assert {row["best"] for row in written["auto"]} <= {0, 4}
    assert all(row["low"] <= row["ratio_to_best"] <= row["high"] for row in written["auto"])
    assert report.passed == all(row["ratio_to_best"] >= 0.9 for row in written["auto"])
    assert (out / "budget.png").stat().st_size > 0
    assert (out / "budget.svg").stat().st_size > 0
    assert sum("repeat" in stage for stage in stages) == 4 * 3
    again, stages = study()
    assert not stages, "every part was there"
    assert again.rows == report.rows
    kept = kept_turns(SETTINGS, Parts(out, "budget", {}))
    assert [turns.missing for turns in kept.values()] == [2, 2], "of other settings"


def test_a_run_that_was_broken_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch has 1 or 3 replies; warming up takes two, and a turn one for each of three budgets."""
    model = str(save_tokenizer(tiny_model(tmp_path / "model", vocab=300), byte_level_tokenizer(300)))
    fake = FakeStack()
    monkeypatch.setattr(study_module, "running", fake.running)
    monkeypatch.setattr(study_module, "AsyncClient", fake.client)

    def study(settings: BudgetSettings = SETTINGS) -> Report:
        fake.asked.clear()
        return study_budget(model, "float32", DrafterConfig(), PROMPTS[:1], settings, tmp_path, 1, lambda stage: None)

    fake.breaks_at = 2 + 2 * 3 + 3 * (2 + 3) + 1
    with pytest.raises(Broken):
        study()
    assert sorted(each.stem for each in (tmp_path / "parts/budget").iterdir()) == ["1-0", "1-1", "3-0"]
    assert "goes on" not in capsys.readouterr().err
    fake.breaks_at = None
    report = study()
    assert len(fake.asked) == 3 * (2 + 3), "warming up and the last turn"
    assert "study budget goes on: 3 of 4 turns" in capsys.readouterr().err
    assert report.extra["runs"] == 2
    assert sum("in 2 runs" in note for note in report.notes) == 1
    assert study().rows == report.rows
    assert (len(fake.asked), fake.started) == (0, 2)
    assert "study budget measures nothing: 4 of 4 turns" in capsys.readouterr().err
    study(replace(SETTINGS, repeats=3))
    assert len(fake.asked) == (1 + 3) * (2 + 3), "more repeats go on from fewer"
    study(replace(SETTINGS, new_tokens=17))
    assert len(fake.asked) == (1 + 3) * (2 + 2 * 3), "another length does not"


@pytest.mark.parametrize("name", ["budgets", "sessions"])
def test_no_number_comes_twice(name: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["study", "budget", "--prompts", "none", "--out", str(tmp_path), f"--{name}", "4", "4"])
    with pytest.raises(InvalidField, match=rf"--{name}: got \[4, 4\], allowed: each number once"):
        run_budget(args, lambda stage: None)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--repeats", "1", "2 to 1000"),
        ("--budgets", "65", "0 to 64"),
        ("--sessions", "0", "1 to 256"),
        ("--per-category", "0", "1 to 1000000"),
        ("--threads", "0", "1 to 1024"),
        ("--temperature", "nan", "0 to 10"),
    ],
)
def test_wrong_options_are_named(option: str, value: str, allowed: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["study", "budget", "--prompts", "none", "--out", str(tmp_path), option, value])
    with pytest.raises(InvalidField, match=f"{option}: got {value}, allowed: {allowed}"):
        run_budget(args, lambda stage: None)
