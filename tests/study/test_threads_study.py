"""The study of threads: its options, and a small run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.study.cli import add_parser
from paceline.study.study_threads import ThreadSettings, study_threads
from paceline.study.threads_cli import run_threads, thread_list
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model


def test_choices_of_threads() -> None:
    assert thread_list("2:2, 2:1") == ((2, 2), (2, 1))
    for wrong in ("", "2", "2:", "2:0", "2:2:2", "x:1", "1:1,1:1", "1:1025"):
        with pytest.raises(InvalidField, match="--threads: got"):
            thread_list(wrong)


async def test_every_choice_is_compared_with_the_first(tmp_path: Path) -> None:
    model = save_tokenizer(tiny_model(tmp_path / "model", vocab=300), byte_level_tokenizer(300))
    prompts = [Prompt("1", "all", "the code is K-0417, one two one two")]
    settings = ThreadSettings(
        str(model), prompts, DrafterConfig(), "suffix", threads=((1, 1),), new_tokens=12, prompt_tokens=48, repeats=2
    )
    report = await study_threads(settings, lambda _: None)
    assert [(row["target_threads"], row["drafter_threads"], row["system"]) for row in report.rows] == [
        (1, 1, "paceline plain"),
        (1, 1, "paceline drafted"),
    ]
    assert all(row["tokens_per_s"] > 0 and row["ms_per_round"] > 0 for row in report.rows)
    assert [row["over_first"] for row in report.rows] == pytest.approx([1, 1])


def test_wrong_options_are_named(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["study", "threads", "--prompts", str(tmp_path / "none"), "--repeats", "0"])
    with pytest.raises(InvalidField, match="--repeats: got 0, allowed: 1 to 1000"):
        run_threads(args, lambda stage: None)
