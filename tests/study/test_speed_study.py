"""The study of speed: its rows, its options, and how it goes on, over a stack that is not there."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.runtime.costs import PassCosts
from paceline.study import speed
from paceline.study.cli import add_parser
from paceline.study.report import Report
from paceline.study.speed import SpeedSettings, study_speed
from paceline.study.speed_cli import run_speed
from paceline.study.speed_rows import drafted_rows, plain_row
from support.fake_stack import Broken, FakeStack
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

PROMPTS = [Prompt("1", "copy", "one two three"), Prompt("2", "qa", "four five six")]


def timed(per_token_s: float, rounds: int = 10, drafted: int = 40) -> dict[str, float]:
    return {"tokens": 21, "decoded": 20, "decode_s": 20 * per_token_s, "rounds": rounds, "drafted": drafted}


def test_rows_are_ratios_of_seconds_a_token() -> None:
    plain = plain_row([{"ours": timed(0.2), "base": 0.3}, {"ours": timed(0.2), "base": 0.3}], 2)
    assert (plain["ratio"], plain["ours_ms"], plain["base_ms"]) == pytest.approx((1.5, 200, 300))
    pairs = [{"ours": timed(0.1), "base": timed(0.2)}, {"ours": timed(0.1), "base": timed(0.8)}] * 2
    every, copy, qa = drafted_rows(pairs, ["copy", "qa"], PassCosts({1: 1.0, 5: 2.0, 6: 2.0}), "suffix")
    assert [row["ours"] for row in (every, copy, qa)] == ["suffix", "suffix: copy", "suffix: qa"]
    assert [row["ratio"] for row in (every, copy, qa)] == pytest.approx([4, 2, 8])
    assert (every["low"], every["high"]) == pytest.approx((4, 4)), "each prompt came twice"
    assert every["low_prompts"] < 4 < every["high_prompts"]
    assert (copy["low_prompts"], copy["pairs"]) == (None, 2), "one prompt"
    assert (every["tokens_per_round"], every["ceiling"]) == pytest.approx((2.1, 1.05)), "a pass of 5 costs two of 1"


async def test_a_run_that_was_broken_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, bare, passes = FakeStack(), [], []

    class Bare:
        def __init__(self, folder: Path, dtype: str) -> None:
            pass

        def decode_timed(self, tokens: Sequence[int], new_tokens: int) -> tuple[list[int], float]:
            bare.append(time.perf_counter())
            return [1] * new_tokens, 0.001

    def load_runner(*_: object, **__: object) -> SimpleNamespace:
        passes.append(1)
        return SimpleNamespace(costs=PassCosts({1: 0.5}))

    monkeypatch.setattr(speed, "running", fake.running)
    monkeypatch.setattr(speed, "AsyncClient", fake.client)
    monkeypatch.setattr(speed, "BareModel", Bare)
    monkeypatch.setattr(speed, "load_runner", load_runner)
    model = save_tokenizer(tiny_model(tmp_path / "model", vocab=300), byte_level_tokenizer(300))
    settings = SpeedSettings(str(model), PROMPTS, prompt_tokens=48, new_tokens=4, pairs=4, warm_tokens=1, threads=1)
    stages: list[str] = []

    async def study(settings: SpeedSettings) -> Report:
        fake.asked.clear(), bare.clear(), passes.clear(), stages.clear()
        return await study_speed(settings, tmp_path, stages.append)

    # A comparison warms up with a pair. First that with the bare loop, one reply of the stack a pair, then drafting.
    fake.breaks_at = 5 + 2 + 2 + 1
    with pytest.raises(Broken):
        await study(settings)
    kept = {"costs", "plain-0", "plain-1", "plain-2", "plain-3", "drafted-0"}
    assert {each.stem for each in (tmp_path / "parts/speed").iterdir()} == kept
    assert (len(passes), len(bare), fake.started) == (1, 5, 1)
    assert any(stage.startswith("plain decoding against a bare loop: pair 2 of 4, about ") for stage in stages)
    assert "goes on" not in capsys.readouterr().err

    fake.breaks_at = None
    report = await study(settings)
    assert "study speed goes on: 5 of 12 turns" in capsys.readouterr().err
    assert (len(passes), len(bare), fake.started) == (0, 0, 3)
    # Twice a warm-up; three pairs and four, the order turned over for every second one and after both prompts.
    served = 16  # at once, of which one would do
    cold = [True, False, False, True, False, True, True, False]
    warm = [True, False, True, False, False, True, False, True, True, False]
    assert fake.asked == [*cold, *[None] * served, *warm]
    assert [row["ours"] for row in report.rows] == [
        "plain through the stack",
        *("suffix, own text only" + kind for kind in ("", ": copy", ": qa")),
        *(f"suffix, {settings.warm_tokens} tokens served" + kind for kind in ("", ": copy", ": qa")),
    ]
    assert report.extra["memory_mib"]["target"] > 0
    assert report.extra["runs"] == 2
    assert sum("in 2 runs" in note for note in report.notes) == 1

    again = await study(settings)
    assert (again.rows, again.extra) == (report.rows, report.extra)
    assert (fake.asked, fake.started) == ([], 3), "nothing is started"
    assert "study speed measures nothing: 12 of 12 turns" in capsys.readouterr().err
    await study(replace(settings, pairs=5, warm_tokens=0, drafter=DrafterConfig(), threads=1))
    assert len(passes) == 1, "without a warm drafter it is another study"
    json.dumps(report.as_dict())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pairs", "1"), "--pairs: got 1, allowed: 2 to 100000"),
        (("--per-category", "0"), "--per-category: got 0, allowed: 1 to 1000000"),
        (("--new-tokens", "3"), "--new-tokens: got 3, allowed: 4 to 100000"),
        (("--warm-tokens", "-1"), "--warm-tokens: got -1, allowed: 0 to 100000000"),
        (("--prompts", "none"), "--prompts: got 'none', allowed: a file of JSON lines"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}')
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    given = ["study", "speed", "--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path), *options]
    with pytest.raises(InvalidField) as refused:
        run_speed(parser.parse_args(given), lambda stage: None)
    assert said in str(refused.value)
