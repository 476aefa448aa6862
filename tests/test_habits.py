"""The habits of the code base: formatting, types, import contracts, protos. A broken one fails the suite."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
CODE = ("services", "clients", "tests", "deploy")


def run(root: Path, *command: str) -> str:
    """Runs a tool of this environment in the repository; fails with its output."""
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", *CODE),
        ("ruff", "format", "--check", *CODE),
        ("mypy",),
        ("buf", "lint", "protos"),
        ("buf", "breaking", "protos", "--against", "protos/released.binpb"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_tool_passes(root: Path, command: tuple[str, ...]) -> None:
    run(root, *command)


def test_breaking_check_can_fail(root: Path, tmp_path: Path) -> None:
    protos = tmp_path / "protos"
    shutil.copytree(root / "protos", protos)
    common = protos / "paceline/v1/common.proto"
    changed = common.read_text().replace("optional double temperature = 1;", "optional float temperature = 1;")
    assert changed != common.read_text()
    common.write_text(changed)
    done = subprocess.run(
        [str(BIN / "buf"), "breaking", str(protos), "--against", str(root / "protos/released.binpb")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "temperature" in done.stdout


def test_generated_code_is_that_of_the_protos(root: Path, tmp_path: Path) -> None:
    protos = sorted(str(path) for path in (root / "protos/paceline/v1").glob("*.proto"))
    flags = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    run(root, "python", "-m", "grpc_tools.protoc", f"-I{root / 'protos'}", *flags, *protos)
    fresh, committed = tmp_path / "paceline/v1", root / "services/paceline/v1"
    names = {path.name for path in committed.glob("*_pb2*")}
    assert {path.name for path in fresh.iterdir()} == names
    stale = [name for name in sorted(names) if (fresh / name).read_text() != (committed / name).read_text()]
    assert not stale, "run `make protos`"


def test_every_import_contract_is_kept_by_name(root: Path) -> None:
    """import-linter passes and says how many contracts it kept; a renamed module must not make one vacuous."""
    report = run(root, "lint-imports")
    wanted = (root / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert re.search(rf"Contracts: {wanted} kept, 0 broken", report), report


def test_ci_runs_the_test_command_and_nothing_else(root: Path) -> None:
    lines = [line.strip() for line in (root / ".ci/run").read_text().splitlines()]
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]


def test_no_file_was_left_unfinished(root: Path) -> None:
    words = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    found = [
        f"{path.relative_to(root)}:{number}"
        for folder in CODE
        for path in (root / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert not found
