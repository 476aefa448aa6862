"""`paceline models`."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from paceline.cli import models
from paceline.cli.models import FetchProgress
from paceline.errors import ModelNotFound
from paceline.runtime.known_models import DEFAULT_MODEL
from support.shop import Shop


def called(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    models.add_parser(parser.add_subparsers(dest="command"))
    return models.run(parser.parse_args(["models", *arguments]))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop whose model is the one that the command line knows."""
    shop = Shop(tmp_path / "shop")
    monkeypatch.setattr(models, "default_store", lambda: shop.store(tmp_path / "home"))
    return shop


def test_list_fetch_list(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "home" / "models" / "tiny"
    assert called("list") == 0
    out = capsys.readouterr().out
    assert "tiny" in out
    assert "absent" in out
    assert called("fetch", "tiny") == 0
    printed = capsys.readouterr()
    assert printed.out == f"{folder}\n"
    assert printed.err.splitlines() == [
        "tiny: downloading tiny-model==1.0",
        "tiny: converting to safetensors",
        "tiny: done",
    ]
    assert called("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "models": [
            {
                "name": "tiny",
                "state": "ready",
                "folder": str(folder),
                "licence": "Apache-2.0",
                "description": "for tests",
            }
        ]
    }


def test_fetch_json_is_one_object(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("fetch", "tiny", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"name": "tiny", "folder": str(tmp_path / "home" / "models" / "tiny")}


def test_verify_reads_the_files_and_says_by_its_exit_code(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("list", "--verify") == 0  # absent is not damaged
    called("fetch", "tiny", "--json")
    folder = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["folder"])
    (folder / "config.json").write_text("[]")
    assert called("list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["state"] == "ready"  # sizes are the same
    assert called("list", "--verify", "--json") == 1
    state = json.loads(capsys.readouterr().out)["models"][0]["state"]
    assert state == "config.json differs from what was fetched"


def test_unknown_names_and_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    with pytest.raises(ModelNotFound, match=f"gpt-9 is not a model .* known: {DEFAULT_MODEL}"):
        called("fetch", "gpt-9")
    parser = argparse.ArgumentParser()
    models.add_parser(parser.add_subparsers())
    assert parser.parse_args(["models", "fetch"]).name == DEFAULT_MODEL


def test_a_terminal_gets_a_bar_that_ends() -> None:
    screen = io.StringIO()
    with FetchProgress("tiny", Console(file=screen, force_terminal=True, width=100)) as progress:
        progress.stage("downloading")
        progress.count(50_000_000, 93_000_000)
        progress.stage("converting")
    assert "50 of 93 MB" in screen.getvalue()
    assert "tiny: converting" in screen.getvalue()
    assert screen.getvalue().count("\x1b[?25h") == 1, "the cursor is shown again"


def test_elsewhere_a_line_is_written_for_each_stage() -> None:
    log = io.StringIO()
    with FetchProgress("tiny", Console(file=log, width=100)) as progress:
        progress.stage("downloading")
        progress.count(1, 0)
        progress.stage("done")
    assert log.getvalue() == "tiny: downloading\ntiny: done\n"
