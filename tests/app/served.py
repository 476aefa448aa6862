"""`paceline serve` as a process under test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.cli.processes import descendants

PACELINE = str(Path(sys.executable).parent / "paceline")
START_S = 240.0


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what an enclosing Ray cluster of the tests, or `make test`, has set."""
    outer = ("RAY_", "PACELINE_ADDRESS", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return {**kept, **more}


@dataclass
class Served:
    """A server in a session of its own, so that signals of the test runner's terminal do not reach it."""

    arguments: Sequence[str]
    process: subprocess.Popen[str] = field(init=False)
    errors: list[str] = field(default_factory=list)  # lines of standard error

    def __enter__(self) -> Served:
        self.process = subprocess.Popen(
            [PACELINE, "serve", *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()  # its keeper then ends the cluster
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_ready(self) -> dict[str, str]:
        """The facts of the ready line."""
        assert self.process.stdout is not None
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        assert line.startswith("paceline ready "), f"{line!r}\n{''.join(self.errors)}"
        return dict(re.findall(r"(\w+)=(\S+)", line))

    def wait_for_step(self, step: str, patience_s: float = 120.0) -> None:
        """Waits until standard error tells a step."""
        ended = threading.Event()
        while not any(step in line for line in self.errors):
            assert self.process.poll() is None, "".join(self.errors)
            patience_s -= 0.05
            assert patience_s > 0, "".join(self.errors)
            ended.wait(0.05)

    @property
    def processes(self) -> set[int]:
        """Every process of the stack, the command itself included."""
        return {self.process.pid, *descendants(self.process.pid)}

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.errors.append(line)


def run(
    *arguments: str, address: str = "", text_in: str = "", timeout: float = 120, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a `paceline` command to its end, in `folder` if given."""
    return subprocess.run(
        [PACELINE, *arguments],
        input=text_in,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=folder,
        env=environment(PACELINE_ADDRESS=address) if address else environment(),
    )
