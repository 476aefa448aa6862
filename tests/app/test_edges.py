"""Small parts of the command line: Ray's error texts, the stop signal, progress and output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.test_options import options
from paceline.cli.deploy_watch import counted, reason
from paceline.cli.progress import Progress
from paceline.cli.ray_errors import deepest
from paceline.cli.stack import Stack
from paceline.cli.stop_signal import Stopped, StopSignal

TRACEBACK = """The deployment failed to start 3 times in a row. See controller logs. Error:
\x1b[36mray::ServeReplica:paceline:Target.initialize_and_get_metadata()\x1b[39m (pid=1, ip=10.0.0.1)
  File "/x/replica.py", line 1, in initialize
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "/x/server.py", line 1, in start
paceline.errors.ModelUnsupported: mamba: it has recurrent layers, whose state cannot be rolled back
"""


def test_deepest_finds_our_error_in_rays_text() -> None:
    assert deepest([TRACEBACK]) == "mamba: it has recurrent layers, whose state cannot be rolled back"


def test_deepest_takes_pythons_errors_too() -> None:
    assert deepest(["Traceback:\n  File x\nModuleNotFoundError: No module named 'y'\n"]) == "No module named 'y'"


def test_deepest_keeps_the_lines_below_an_error() -> None:
    text = (
        "ray::HAProxyManager.ready()\n  File x\n"
        "RuntimeError: HAProxy crashed during startup: [NOTICE] (1) : version 2.8\n"
        "[ALERT] (1) : Binding for frontend grpc: cannot bind socket (Address already in use) for [0.0.0.0:9000]\n"
    )
    assert deepest([text]).endswith("cannot bind socket (Address already in use) for [0.0.0.0:9000]")
    assert deepest([text]).startswith("HAProxy crashed during startup")


def test_deepest_without_an_error_is_the_text() -> None:
    assert deepest(["nothing  to\nsee"]) == "nothing to see"
    assert len(deepest(["x" * 10_000])) == 500


def test_reason_is_that_of_the_failed_deployment() -> None:
    deployments = {
        "Gateway": SimpleNamespace(status="HEALTHY", message="ValueError: not this"),
        "Target": SimpleNamespace(status="DEPLOY_FAILED", message=TRACEBACK),
    }
    status = SimpleNamespace(deployments=deployments, message="Failed to update the deployments ['Target'].")
    assert reason(status).startswith("mamba")


def test_counts_of_replicas() -> None:
    deployments = {
        "Target": SimpleNamespace(replica_states={"RUNNING": 1, "STARTING": 2}),
        "Drafter": SimpleNamespace(replica_states={}),
    }
    assert counted(SimpleNamespace(deployments=deployments)) == "Drafter 0 running; Target 1 running, 2 starting"


def test_call_returns_raises_and_stops() -> None:
    with StopSignal() as stop:
        assert stop.call(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            stop.call(lambda: 1 // 0)
        hold = threading.Event()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Stopped):
            stop.call(hold.wait)
        with pytest.raises(Stopped):
            stop.call(lambda: 3)
        assert stop.wait(0)
        hold.set()


@pytest.mark.parametrize("own", [True, False], ids=["own cluster", "joined cluster"])
@pytest.mark.parametrize("cut", [True, False], ids=["a step is cut short", "no step runs"])
def test_ray_is_not_shut_down_under_a_step_that_still_runs(
    own: bool, cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step would end the process from within, or start a Ray of its own."""
    done: list[str] = []
    monkeypatch.setattr("ray.shutdown", lambda: done.append("disconnect"))
    monkeypatch.setattr("ray.serve.shutdown", lambda: done.append("end Serve"))
    monkeypatch.setattr("ray.serve.delete", lambda name: done.append(f"delete {name}"))
    monkeypatch.setattr("paceline.cli.stack.STEP_END_S", 0.01)
    hold = threading.Event()
    with (tmp_path / "err").open("w") as sink, Progress(sink.fileno()) as progress, StopSignal() as stop:
        stack = Stack(options(), progress, stop)
        stack._connected = stack._deployed = True
        stack._cluster = SimpleNamespace(stop=lambda: done.append("end nodes")) if own else None  # type: ignore[assignment]
        if cut:
            threading.Timer(0.1, stop.asked.set).start()
            with pytest.raises(Stopped):
                stop.call(hold.wait)
        stack.stop()
        hold.set()
    leave = ["end Serve"] if own else ["delete paceline"]
    if cut:
        assert done == (["end nodes"] if own else leave)
    else:
        assert done == [*leave, "disconnect", *(["end nodes"] if own else [])]


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_handler_is_ours_again_after_a_step_replaced_it() -> None:
    with StopSignal() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray's start does, below Python
        stop.call(lambda: None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)


def test_progress_off_a_terminal_is_one_line_a_step(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as sink, Progress(sink.fileno()) as progress:
        progress.step("first")
        progress.detail("half")
        progress.step("second")
    assert path.read_text() == "first ...\n  half\nsecond ...\n"


def test_libraries_cannot_write_to_our_output(tmp_path: Path) -> None:
    code = """
import os, sys
from paceline.cli.progress import QuietOutput
output = QuietOutput()
output.to(sys.argv[1])
print("noise", flush=True); os.write(1, b"raw noise"); os.write(2, b"more noise")
output.write("ours\\n")
output.restore()
print("after")
"""
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert done.stdout == "ours\nafter\n"
    assert done.stderr == ""
    assert log.read_text() == "noise\nraw noisemore noise"
