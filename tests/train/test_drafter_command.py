"""`paceline train drafter` and `export` as commands: the last line, Ctrl-C, and options that are refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from paceline.runtime.drafter_folder import read_facts
from paceline.train.metrics import TrainProgress
from paceline_client.cli import main
from train.corpora import Taught, taught
from train.runs import CHECKPOINT


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return taught(tmp_path_factory.mktemp("given"), sequences=24)


def command(given: Taught, out: Path, *more: str) -> list[str]:
    fixed = ["--corpus", str(given.corpus), "--out", str(out), "--batch-tokens", "128", "--validation", "0.2"]
    return ["train", "drafter", *fixed, "--json", *more]


def test_it_trains_and_says_what_it_reached(given: Taught, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(given, tmp_path / "out", "--epochs", "1", "--vocab", "64", "--layers", "0,4")) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    facts = read_facts(tmp_path / "out", "out")
    assert told["out"] == str(tmp_path / "out")
    assert {name: value for name, value in told.items() if name != "out"} == facts.training
    assert (facts.target, facts.layers, facts.columns, facts.weights) == (str(given.target), (0, 4), 64, "float32")
    assert told["tokens_per_s"] > 0
    source, small = str(tmp_path / "out"), tmp_path / "small"
    assert main(["train", "export", "--from", source, "--out", str(small), "--weights", "int8"]) == 0
    assert read_facts(small, "small").weights == "int8"
    assert main(["train", "export", "--from", str(small), "--out", str(tmp_path / "none")]) == 1
    assert "error: --from: got" in capsys.readouterr().err


def test_ctrl_c_leaves_a_run_that_goes_on(
    given: Taught, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(TrainProgress, "stepped", lambda *_: signal.raise_signal(signal.SIGINT))
        assert main(command(given, tmp_path)) == 130
    assert "--resume" in capsys.readouterr().err
    assert (tmp_path / CHECKPOINT).is_file()
    assert not (tmp_path / "drafter.json").exists()
    assert main(command(given, tmp_path, "--resume")) == 0
    assert (tmp_path / "drafter.json").is_file()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--layers", "0,x"), "--layers"),
        (("--layers", "0,9"), "--layers"),
        (("--vocab", "some"), "--vocab"),
        (("--vocab", "0"), "--vocab"),
        (("--vocab", "all", "--weights", "int8"), "--weights"),
        (("--epochs", "0"), "--epochs"),
        (("--argmax-weight", "2"), "--argmax-weight"),
        (("--device", "tpu:x"), "device"),
        (("--resume",), "--resume"),
    ],
)
def test_wrong_options_are_refused_by_name(
    given: Taught, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], named: str
) -> None:
    assert main(command(given, tmp_path / "out", *more)) == 1
    assert f"error: {named}: got" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
