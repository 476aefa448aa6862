"""Turns that are kept and go on, and what the command says of them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.errors import InvalidField
from paceline.prompt_file import load_prompts
from paceline.study import cli
from paceline.study.parts import Parts
from paceline.study.ranges import check_out, check_ranges
from paceline.study.ratios import ratio_by_prompt, ratio_of
from paceline.study.report import Report
from paceline.study.turns import Turns, runs_note, tell_kept


async def measured(turns: Turns, *keys: str) -> list[str]:
    """Takes these turns; the keys of those that were measured."""
    found: list[str] = []
    for key in keys:

        async def measure(key: str = key) -> dict[str, object]:
            found.append(key)
            return {"of": key, "pair": (1, 2)}

        await turns.take(key, measure)
    return found


async def test_turns_are_measured_once_with_the_same_settings(tmp_path: Path) -> None:
    first = Turns(Parts(tmp_path, "s", {"a": 1}), ["x", "y"])
    assert (first.missing, await measured(first, "x")) == (2, ["x"])
    again = Turns(Parts(tmp_path, "s", {"a": 1}), ["x", "y", "z"])
    assert (again.missing, await measured(again, "x", "y", "z")) == (2, ["y", "z"])
    assert again.all() == [{"of": key, "pair": [1, 2]} for key in "xyz"], "as JSON reads them, kept or not"
    assert again.missing == 0
    assert Turns(Parts(tmp_path, "s", {"a": 2}), ["x"]).missing == 1


async def test_runs_that_measured_the_parts_are_counted(tmp_path: Path) -> None:
    parts = [Parts(tmp_path, "s", {}) for _ in range(3)]
    await measured(Turns(parts[0], ["x", "y"]), "x", "y")
    assert parts[1].runs(["x", "y"]) == 1
    await measured(Turns(parts[1], ["x", "y", "z"]), "x", "y", "z")
    assert [parts[2].runs(keys) for keys in (["x", "y"], ["x", "z"], ["x", "z", "not there"])] == [1, 2, 3]
    assert runs_note(1) == []
    assert "in 2 runs" in runs_note(2)[0]


async def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = Parts(None, "s", {})
    turns = Turns(parts, ["x"])
    assert await measured(turns, "x") == ["x"]
    assert turns.all() == [{"of": "x", "pair": [1, 2]}]
    assert parts.made("k", lambda: (1,)) == [1]
    assert (parts.get("x"), parts.runs(["x"]), os.listdir(tmp_path)) == (None, 1, [])


async def test_time_left_is_that_of_the_missing_turns() -> None:
    now = [0.0]
    turns = Turns(Parts(None, "s", {}), [str(each) for each in range(5)], lambda: now[0])

    async def measure() -> int:
        now[0] += 30
        return 1

    assert turns.told("turn 1") == "turn 1", "nothing is known yet"
    await turns.take("0", measure)
    assert turns.told("turn 2") == "turn 2, about 2 min left"
    await turns.take("1", measure)
    assert turns.told("turn 3") == "turn 3, about 90 s left"


def test_a_run_that_goes_on_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = Parts(tmp_path, "s", {})
    tell_kept("s", parts, ["x", "y"])
    assert capsys.readouterr() == ("", "")
    parts.put("x", 1)
    tell_kept("s", parts, ["x", "y"])
    said = capsys.readouterr()
    assert said.err.startswith(f"study s goes on: 1 of 2 turns with these settings are in {tmp_path}/parts/s.")
    assert said.out == ""
    tell_kept("s", parts, ["x"])
    assert capsys.readouterr().err.startswith("study s measures nothing: 1 of 1 turns")


def test_prompts_that_each_came_twice_are_taken_as_they_are() -> None:
    ours, base = [1.0] * 6, [1.0, 2.0, 4.0, 1.1, 2.2, 4.4]
    twice, others = ratio_by_prompt(ours, base, [0, 1, 2, 0, 1, 2])
    assert (twice, others) == (ratio_of(ours, base, [0, 1, 2, 0, 1, 2]), ratio_of(ours, base))
    for once in ([0, 1, 2, 0, 1, 3], [0, 1, 2, 0, 1, 1]):  # more pairs than prompts; twice as many; but not each twice
        assert ratio_by_prompt(ours, base, once) == (ratio_of(ours, base),) * 2
    one, none = ratio_by_prompt(ours, base, [7] * 6)
    assert (one, none) == (ratio_of(ours, base), None), "one prompt tells nothing of others"
    assert one.row(none)["low_prompts"] is None


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_out(tmp_path / "not" / "there" / "yet")
    assert not (tmp_path / "not").exists(), "nothing is made"
    file = tmp_path / "file"
    file.write_text("")
    for wrong in (file, file / "below"):
        with pytest.raises(InvalidField, match=f"--out: got .*, allowed: a folder .* {file} is no folder"):
            check_out(wrong)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(InvalidField, match=f"a folder that can be written. {tmp_path} cannot"):
        check_out(tmp_path / "new")


def test_ranges_hold_for_every_number_of_a_list() -> None:
    args = argparse.Namespace(new_tokens=8, sessions=[1, 0])
    check_ranges(args, {"new_tokens": (8, 9)})
    with pytest.raises(InvalidField, match="--new-tokens: got 8, allowed: 9 to 10"):
        check_ranges(args, {"new_tokens": (9, 10)})
    with pytest.raises(InvalidField, match="--sessions: got 0, allowed: 1 to 2"):
        check_ranges(args, {"sessions": (1, 2)})


def test_a_prompt_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidField, match=r"--prompts: got .*p.jsonl.* a file of JSON lines in UTF-8"):
        load_prompts(tmp_path / "p.jsonl")


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    return parser.parse_args(["study", *options])


def test_the_command_refuses_such_a_folder_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def study(args: object, progress: object) -> Report:
        raise AssertionError("measured")

    (tmp_path / "file").write_text("")
    monkeypatch.setitem(cli._STUDIES, "speed", study)
    with pytest.raises(InvalidField, match="--out"):
        cli.run(parsed("speed", "--prompts", "p", "--out", str(tmp_path / "file")))


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_tells_what_the_same_command_goes_on_from(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def study(args: argparse.Namespace, progress: object) -> Report:
        if kept:
            Parts(args.out, "speed", {}).put("x", 1)
        raise KeyboardInterrupt

    monkeypatch.setitem(cli._STUDIES, "speed", study)
    with pytest.raises(KeyboardInterrupt):
        cli.run(parsed("speed", "--prompts", "p", "--out", str(tmp_path)))
    said = f"study speed broken off; the same command goes on from {tmp_path}/parts/speed"
    assert (said in capsys.readouterr().err) is kept


INTERRUPTED = """
import asyncio, json, multiprocessing, sys, time
from pathlib import Path
from paceline.study import stack
from paceline.study.parts import Parts
from paceline.study.peers import Decoded, System, decode_all
from paceline.study.stack import launch, serve_until_closed

class Server:
    async def start(self):
        return "somewhere"
    async def stop(self, grace_s):
        pass

async def made():
    return Server()

def serving(pipe):
    serve_until_closed(pipe, made)

def slow(pipe):
    Path("starting").touch()
    time.sleep(600)

async def study():
    async def decode(prompt):
        await asyncio.sleep(0.05)
        return Decoded((1, 2), 1.0, 1)
    service = await launch("service", serving)
    try:
        await decode_all([System("a", "x", decode)], [[1], [2]], 500, Parts(Path(), "s", {}), lambda _: None)
    finally:
        await service.stop()

if __name__ == "__main__":
    stack.START_S = 60.0  # as long as a start that is not broken off would hold the end up
    try:
        asyncio.run(study() if sys.argv[1] == "study" else launch("slow", slow))
    except KeyboardInterrupt:
        Path("left.json").write_text(json.dumps([each.name for each in multiprocessing.active_children()]))
        sys.exit(130)
"""


@pytest.mark.parametrize(("what", "seen"), [("study", "parts/s/1-0.json"), ("start", "starting")])
def test_ctrl_c_leaves_finished_turns_and_no_process(what: str, seen: str, tmp_path: Path) -> None:
    """As a terminal sends it, to all processes of the group, while turns are measured and while a service starts."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    run = subprocess.Popen(
        [sys.executable, "interrupted.py", what],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )
    try:
        while not (tmp_path / seen).exists():
            assert run.poll() is None, run.communicate()[1]
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGINT)
        said = run.communicate()[1]
        assert run.returncode == 130
        assert "Traceback" not in said
        assert json.loads((tmp_path / "left.json").read_text()) == []
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    if what == "study":
        files = list((tmp_path / "parts/s").iterdir())
        assert 3 <= len(files) < 1000
        assert all(json.loads(each.read_text())["part"]["a, x"]["tokens"] == [1, 2] for each in files)
