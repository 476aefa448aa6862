"""`paceline demo`, which is what `make demo` runs once everything is installed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.processes import wait_gone
from app.readme import commands
from app.served import PACELINE, environment, run
from paceline.cli.demo import PROMPT, Comparison
from paceline.cli.processes import descendants
from paceline_client.replies import Finish, Reply, Speculation, Timings, Usage


def reply(tokens: int, total_s: float, accepted: int = 0, fallbacks: dict[str, int] | None = None) -> Reply:
    speculation = Speculation(tokens - accepted, 3 * accepted, accepted, fallbacks or {})
    finish = Finish("length", "", Usage(5, tokens), speculation, Timings(0.5, total_s), 1, "m")
    return Reply("text", tuple(range(tokens)), finish)


def test_summary_is_for_people() -> None:
    text = Comparison("p", reply(101, 10.5, accepted=50, fallbacks={"late": 2}), reply(101, 20.5)).text()
    lines = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert lines["tokens"] == ["101", "101"]
    assert lines["speed"] == ["10.0", "tokens/s", "5.0", "tokens/s"]
    assert lines["time to first token"] == ["0.50", "s", "0.50", "s"]
    assert lines["rounds"] == ["51", "101"]
    assert lines["accepted per round"] == ["0.98", "-"]
    assert lines["fallbacks"] == ["late", "2", "-"]
    assert lines["same tokens"] == ["yes"]
    assert lines["against plain"] == ["2.00", "times"]


def test_summary_does_not_hide_a_difference() -> None:
    comparison = Comparison("p", reply(5, 1.0), reply(6, 1.0))
    assert not comparison.same_tokens
    assert "NO" in comparison.text()


def test_reply_of_one_token_has_no_speed() -> None:
    comparison = Comparison("p", reply(1, 0.5), reply(1, 0.5))
    assert comparison.ratio is None
    assert "against plain                       -" in comparison.text()


def test_make_demo_runs_the_demo_and_passes_the_prompt(root: Path) -> None:
    assert "make demo" in commands()
    for prompt in (None, "two words", 'a "quoted" $HOME `x` $(y)'):
        env = environment() if prompt is None else environment(PROMPT=prompt)
        recipe = subprocess.run(["make", "-n", "demo"], cwd=root, env=env, capture_output=True, text=True, check=True)
        line = recipe.stdout.splitlines()[-1]
        assert line.startswith(".venv/bin/paceline demo")
        shown = line.replace(".venv/bin/paceline", f"{sys.executable} -c 'import sys; print(sys.argv[1:])'")
        got = subprocess.run(["sh", "-c", shown], env=env, capture_output=True, text=True, check=True).stdout
        assert got.strip() == str(["demo"] if prompt is None else ["demo", "--prompt", prompt])


@pytest.mark.ray
@pytest.mark.model
def test_demo_from_start_to_end() -> None:
    done = run("demo", "--max-tokens", "24", timeout=300)
    assert done.returncode == 0, done.stderr
    assert PROMPT.splitlines()[0] in done.stdout
    assert "same tokens                       yes" in done.stdout
    rows = {line[:20].strip(): line[20:] for line in done.stdout.splitlines()[-8:]}
    assert {"tokens", "speed", "time to first token", "rounds", "accepted per round", "fallbacks"} <= set(rows)
    assert rows["tokens"].split() == ["24", "24"]
    for step in ("checked: the model is here", "starting Ray nodes", "deploying", "stopping"):
        assert step in done.stderr


@pytest.mark.ray
@pytest.mark.model
def test_demo_as_json_cut_short_by_ctrl_c() -> None:
    """Ctrl-C while it starts: it ends by itself and leaves nothing."""
    with subprocess.Popen(
        [PACELINE, "demo", "--json", "--prompt", "Hello", "--drafter", "suffix"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "starting Ray Serve" in line:
                break
        processes = set(descendants(process.pid))
        assert processes
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(30) == 130
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert wait_gone(processes) == set()


def test_json_holds_both_replies() -> None:
    done = json.loads(json.dumps(Comparison("p", reply(11, 1.5, accepted=4), reply(11, 2.5)).as_json()))
    assert done["same_tokens"] is True
    assert done["ratio"] == pytest.approx(2.0)
    assert done["with_drafts"]["tokens_per_s"] == pytest.approx(10.0)
    assert done["plain"]["usage"]["completion_tokens"] == 11
