"""`paceline study` as the README shows it, and its errors."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from app.readme import commands

PACELINE = Path(sys.executable).parent / "paceline"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PACELINE), *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("paceline study")])
def test_the_readmes_study_leaves_a_report(command: str, tmp_path: Path) -> None:
    done = run(tmp_path, *shlex.split(command)[1:], "--json")
    assert done.returncode in (0, 1), done.stderr  # 1: a bar of speed is missed, which a busy machine may do
    report = json.loads(done.stdout.splitlines()[-1])
    written = json.loads((tmp_path / "results/overhead.json").read_text())
    assert written["results"] == report["results"]
    assert [row["rounds"] for row in report["results"]] == ["drafted", "plain"]
    assert (tmp_path / "results/overhead.md").read_text().startswith("# overhead")


def test_a_missing_prompt_file_is_one_plain_line(tmp_path: Path) -> None:
    done = run(tmp_path, "study", "equality", "--prompts", "none.jsonl", "--out", "results")
    assert done.returncode == 1
    assert "--prompts: got 'none.jsonl'" in done.stderr
    assert "Traceback" not in done.stderr
