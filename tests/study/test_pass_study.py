"""The study of passes: its options and bars, and a small run."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import InvalidField, ModelUnsupported
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.transformers_runner import load_runner
from paceline.speculation.sampling import SamplingParams
from paceline.study.bare import BareModel
from paceline.study.cli import add_parser
from paceline.study.formats import format_list, number_list, with_formats
from paceline.study.intervals import median_interval
from paceline.study.pass_cli import run_pass
from paceline.study.pass_shares import pass_shares
from paceline.study.passes import PackedSessions, PassSettings
from paceline.study.study_pass import judged, study_pass
from support.tiny import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("pass") / "model")


def settings_of(model: Path, *dtypes: str) -> PassSettings:
    return PassSettings(model, dtypes, (1, 3), (1, 2), context=20, rounds=3, threads=1, device="cpu", measure_s=0)


def test_lists_of_formats_and_numbers() -> None:
    assert format_list("float32, int4") == ("float32", "int4")
    assert number_list("--tokens", "1,16, 4", 32) == (1, 16, 4)
    for wrong in ("float33", "int8,int8", ""):
        with pytest.raises(InvalidField, match=r"--dtype: got .* allowed: some of float32,bfloat16,int8,int4"):
            format_list(wrong)
    for wrong in ("0", "1,1", "33", "1,", "x", "-1"):
        with pytest.raises(InvalidField, match=r"--tokens: got .* allowed: numbers from 1 to 32"):
            number_list("--tokens", wrong, 32)


def test_a_format_that_cannot_be_done_is_skipped_with_its_reason() -> None:
    def load(dtype: str) -> str:
        if dtype != "float32":
            raise ModelUnsupported(f"no kernel for {dtype}")
        return dtype

    found, skipped = with_formats(("int8", "float32"), load)
    assert (found, skipped) == ({"float32": "float32"}, ["int8 is skipped: no kernel for int8"])
    with pytest.raises(ModelUnsupported, match="no kernel for int4"):
        with_formats(("int8", "int4"), load)


def test_the_interval_of_a_median_is_of_order_statistics() -> None:
    interval = median_interval([float(each) for each in range(1, 21)])
    assert (interval.mean, interval.low, interval.high) == (10.5, 6.0, 15.0)
    few = median_interval([3.0, 1.0, 2.0])
    assert (few.mean, few.low, few.high) == (2.0, 1.0, 3.0)


def test_every_session_runs_the_same_block_below_the_same_context(model: Path) -> None:
    settings = settings_of(model, "float32")
    packed = PackedSessions(load_runner(ModelSpec(str(model), dtype="float32"), 1024, measure_s=0), settings)
    plan = packed.plan((2, 3))
    assert [segment.tokens.tolist() for segment in plan.segments] == [settings.text()[20:23].tolist()] * 2
    rows = packed.runner.execute(plan)
    with BareModel(model, "float32").prefilled(settings.text()[:20].tolist(), sessions=2) as cached:
        bare = cached.forward(settings.text()[20:23].tolist())
    assert bare.shape[:2] == (2, 3)
    for session in range(2):
        for node in range(3):
            torch.testing.assert_close(rows.logits(session, node), bare[session, node], rtol=1e-4, atol=1e-4)


def test_shares_of_a_pass_sum_to_one_and_find_its_parts(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runner = load_runner(ModelSpec(str(model), dtype="float32"), 512, measure_s=0)
    parents = np.arange(-1, 15, dtype=np.int32)
    plan = PassPlan((Segment(runner.kv.open(), np.zeros(16, np.int32), parents, tuple(range(16))),))
    shares = pass_shares(runner, plan, SamplingParams(temperature=0.7), repeats=3).as_dict()
    parts = [shares[part] for part in ("linears", "attention", "operators", "sampling", "rest")]
    assert sum(parts) == pytest.approx(1)
    assert all(part > 0 for part in parts[:4])
    assert shares["overhead"] == pytest.approx(1 - shares["linears"] - shares["attention"])
    assert "profiler" not in capfd.readouterr().err


def test_bars_count_the_upper_end_of_the_interval() -> None:
    cells = {(1, 1): [1.0, 1.0], (1, 8): [1.2, 1.2]}
    times = {
        "float32": {cell: [4.1 * each for each in taken] for cell, taken in cells.items()},
        "int4": cells,
        "bare float32": {cell: [4.1 * each for each in taken] for cell, taken in cells.items()},
    }
    shares = [{"dtype": "int4", "sessions": 1, "tokens": 1, "overhead": 0.3}]
    found = judged(("float32", "int4"), times, shares)
    assert [met for _, met in found] == [True] * 6 + [False]
    assert any("int4, 1 token, over our float32 pass 0.244" in note for note, _ in found)
    assert "outside linears and attention 0.30 of a pass, at most 0.2: missed" in found[-1][0]
    times["int4"] = {(1, 1): [0.5, 1.5], (1, 8): [1.2, 1.2]}
    assert [met for _, met in judged(("int4",), times, ())] == [False, True, False, False], "two runs that differ"


def test_a_small_run_leaves_a_report(model: Path, tmp_path: Path) -> None:
    report = study_pass(settings_of(model, "float32"), tmp_path, lambda _: None)
    report.write(tmp_path)
    written = json.loads((tmp_path / "pass.json").read_text())
    rows = written["results"]
    assert [(row["dtype"], row["sessions"], row["tokens"]) for row in rows] == [
        ("float32", sessions, tokens) for sessions in (1, 2) for tokens in (1, 3)
    ]
    assert all(0 < row["low_ms"] <= row["ms"] <= row["high_ms"] and row["bare_ms"] > 0 for row in rows)
    assert [row["over_one_token"] for row in rows if row["tokens"] == 1] == [pytest.approx(1)] * 2
    assert [row["over_float32"] for row in rows] == [pytest.approx(1)] * 4
    assert [(each["sessions"], each["tokens"]) for each in written["shares"]] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    (memory,) = written["memory"]
    slots = -(-3 * (20 + 3 + 32) // 16) * 16
    assert memory["kv_mib"] == pytest.approx(2 * 2 * 2 * 8 * 4 * slots / 2**20), "2 layers, 2 heads of 8, float32"
    assert memory["peak_mib"] > 100, "the libraries are there, too"
    assert (tmp_path / "pass.svg").stat().st_size > 0
    assert (tmp_path / "pass.png").stat().st_size > 0


def test_more_than_the_models_context_is_refused(model: Path) -> None:
    with pytest.raises(InvalidField, match="--context: got 254, allowed: at most 253, for 256 tokens with --tokens"):
        study_pass(replace(settings_of(model, "float32"), context=254), None, lambda stage: None)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("--rounds", "1", "2 to 1000"), ("--context", "0", "1 to 65536"), ("--sessions", "257", "numbers from 1 to 256")],
)
def test_wrong_options_are_named(option: str, value: str, allowed: str) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["study", "pass", option, value])
    with pytest.raises(InvalidField, match=f"{option}: got '?{value}'?, allowed: {allowed}"):
        run_pass(args, lambda stage: None)
