"""The script that measures a machine, with a stand-in for the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

STAND_IN = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$2" in pass) exit 1 ;; esac
"""


@pytest.fixture
def command(tmp_path: Path) -> Path:
    path = tmp_path / "paceline"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


def run(root: Path, folder: Path, command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PACELINE": str(command), "CALLS": str(folder / "calls"), "TOKENS": "16"}
    return subprocess.run(
        [str(root / "deploy/measure.sh"), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_study_runs_even_after_a_missed_bar(root: Path, tmp_path: Path, command: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}')
    done = run(root, tmp_path, command, "p.jsonl", "out")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == [
        "models fetch smollm2-135m-instruct",
        "study overhead --out out",
        "study pass --rounds 12 --out out",
        "study peers --prompts p.jsonl --per-category 1 --tokens 16 --out out",
        "study threads --prompts p.jsonl --per-category 1 --tokens 16 --out out",
    ]
    assert "exit status 1, see out/log.txt" in done.stderr
    assert (tmp_path / "out/machine.txt").stat().st_size > 0


@pytest.mark.parametrize("arguments", [(), ("none.jsonl",), ("a", "b", "c")])
def test_wrong_arguments_are_named(arguments: tuple[str, ...], root: Path, tmp_path: Path, command: Path) -> None:
    done = run(root, tmp_path, command, *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr or "none.jsonl cannot be read" in done.stderr
    assert not (tmp_path / "calls").exists()
