"""The study of threads: its options, and a small run."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.study import study_threads
from paceline.study.cli import add_parser
from paceline.study.peers import Decoded, System
from paceline.study.peers_own import OwnSettings
from paceline.study.study_threads import ThreadSettings
from paceline.study.threads_cli import run_threads, thread_list
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model


def test_choices_of_threads() -> None:
    assert thread_list("2:2, 2:1") == ((2, 2), (2, 1))
    for wrong in ("", "2", "2:", "2:0", "2:2:2", "x:1", "1:1,1:1", "1:1025"):
        with pytest.raises(InvalidField, match="--threads: got"):
            thread_list(wrong)


async def test_every_choice_is_compared_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, int, str]] = []

    @asynccontextmanager
    async def own_stack(settings: OwnSettings, dtype: str) -> AsyncIterator[SimpleNamespace]:
        started.append((settings.threads, settings.drafter_threads, dtype))

        def system(name: str, rounds: int) -> System:
            async def decode(prompt: object) -> Decoded:
                return Decoded((1,) * 10, 9.0 / settings.threads, 9, rounds)

            return System(name, dtype, decode)

        yield SimpleNamespace(systems=lambda: [system("paceline plain", 9), system("paceline drafted", 3)])

    monkeypatch.setattr(study_threads, "own_stack", own_stack)
    model = save_tokenizer(tiny_model(tmp_path / "model", vocab=300), byte_level_tokenizer(300))
    prompts = [Prompt(str(number), "all", "one two") for number in range(2)]
    settings = ThreadSettings(str(model), prompts, DrafterConfig(), "suffix", "float32", ((2, 1), (1, 1)))
    report = await study_threads.study_threads(settings, lambda _: None)
    assert started == [(2, 1, "float32"), (1, 1, "float32")]
    found = [(row["target_threads"], row["system"], row["tokens_per_s"], row["over_first"]) for row in report.rows]
    assert found == [
        (2, "paceline plain", pytest.approx(2), pytest.approx(1)),
        (2, "paceline drafted", pytest.approx(2), pytest.approx(1)),
        (1, "paceline plain", pytest.approx(1), pytest.approx(0.5)),
        (1, "paceline drafted", pytest.approx(1), pytest.approx(0.5)),
    ]
    assert [row["ms_per_round"] for row in report.rows] == pytest.approx([500, 1500, 1000, 3000])


def test_wrong_options_are_named(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["study", "threads", "--prompts", str(tmp_path / "none"), "--repeats", "0"])
    with pytest.raises(InvalidField, match="--repeats: got 0, allowed: 1 to 1000"):
        run_threads(args, lambda stage: None)
