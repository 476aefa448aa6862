"""The two studies of acceptance as commands, on a tiny random model, and resumed."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.study import cli
from paceline.study.acceptance_cli import run_nucleus, run_selection
from paceline.study.deviation import DeviationSettings
from paceline.study.nucleus import NucleusSettings
from paceline.study.report import Report
from paceline.study.selection import SelectionSettings
from paceline.study.study_nucleus import study_nucleus
from paceline.study.study_selection import TargetChoice, study_selection
from support.tiny import save_tokenizer, tiny_model

PROMPTS = [Prompt("1", "a", "one two three one two"), Prompt("2", "a", "the code is the code")]
FIGURES = {"png", "svg"}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    folder = tiny_model(tmp_path / "tiny", vocab=400, num_hidden_layers=3)
    return str(save_tokenizer(folder))


def arguments(*given: str) -> Namespace:
    parser = ArgumentParser()
    cli.add_parser(parser.add_subparsers(dest="command"))
    return parser.parse_args(["study", *given])


def written(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (out / "parts").rglob("*.json")}


def test_selection_is_measured_once(model: str, tmp_path: Path) -> None:
    settings = SelectionSettings(
        budgets=(1, 2), temperatures=(0.0, 1.0), stretch=4, contexts=2, max_depth=3, timed=2, prompt_tokens=60
    )
    out = tmp_path / "out"
    targets = [TargetChoice(model, (0, 2))]
    report = study_selection(targets, PROMPTS, settings, out, lambda _: None, threads=1)
    report.write(out)
    held = json.loads((out / "selection.json").read_text())
    assert len(held["results"]) == 2 * 2 * 4 * 2  # drafters, temperatures, rules, budgets
    assert held["settings"]["seed"] == settings.seed
    assert {path.suffix[1:] for path in out.glob("selection.*")} >= FIGURES
    before = written(out)
    again = study_selection(targets, PROMPTS, settings, out, lambda _: None, threads=1)
    assert written(out) == before
    assert again.rows == report.rows


def test_nucleus_is_decoded_once(model: str, tmp_path: Path) -> None:
    settings = NucleusSettings(
        masses=(0.0, 0.9), temperatures=(0.0, 1.0), new_tokens=6, task_tokens=3, tasks_per_kind=1, budget=3, max_depth=3
    )
    out = tmp_path / "out"
    tables = DeviationSettings(tables=1, vocab=3, horizon=2)

    def study() -> Report:
        return study_nucleus(model, (0, 2), PROMPTS, settings, out, lambda _: None, threads=1, tables=tables)

    report = study()
    assert report.passed
    assert len(report.rows) == (2 * 2 + 2) * 2  # drafters by temperature, the sampled ones at 1 only; masses
    assert {path.suffix[1:] for path in out.glob("nucleus.*")} == FIGURES
    assert "bound_holds" in (out / "nucleus_deviation.md").read_text()
    assert "max_relaxations 1" in (out / "nucleus_limits.md").read_text()
    before = written(out)
    assert study().rows == report.rows
    assert written(out) == before


def test_wrong_options_name_themselves(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"prompt": "a"}))
    common = ("--prompts", str(prompts), "--out", str(tmp_path))
    with pytest.raises(InvalidField, match="--contexts: got 9"):
        run_selection(arguments("selection", *common, "--stretch", "4", "--contexts", "9"), lambda _: None)
    with pytest.raises(InvalidField, match="--target"):
        run_selection(arguments("selection", *common, "--target", "x=1-b"), lambda _: None)
    with pytest.raises(InvalidField, match="one MODEL=LAYERS"):
        run_nucleus(arguments("nucleus", *common, "--target", "x"), lambda _: None)
