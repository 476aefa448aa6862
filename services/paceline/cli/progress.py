"""Progress of a start on standard error: a moving line on a terminal, one line a step elsewhere."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status


class Progress:
    """Tells which step is running and how long the ended ones took."""

    def __init__(self, stream_fd: int | None = None) -> None:
        """`stream_fd`: where to write; None is standard error as it is now."""
        target = os.fdopen(os.dup(2 if stream_fd is None else stream_fd), "w", encoding="utf-8", errors="replace")
        self._console = Console(file=target, highlight=False, markup=False, soft_wrap=True)
        self._status: Status | None = None
        self._title, self._began = "", 0.0

    def step(self, title: str) -> None:
        """Ends the step before, if any, and begins another."""
        self.done()
        self._title, self._began = title, time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(title)
            self._status.start()
        else:
            self.say(f"{title} ...")

    def detail(self, text: str) -> None:
        """What the running step waits for."""
        if self._status is not None:
            self._status.update(f"{self._title}: {text}")
        else:
            self.say(f"  {text}")

    def done(self) -> None:
        """Ends the running step."""
        if self._status is not None:
            self._status.stop()
            self.say(f"{self._title} ({time.monotonic() - self._began:.1f} s)")
        self._status, self._title = None, ""

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text)

    def drop(self) -> None:
        """Ends the running step without a word, for an error to follow."""
        if self._status is not None:
            self._status.stop()
        self._status, self._title = None, ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done() if error is None else self.drop()
        self._console.file.flush()


class QuietOutput:
    """Sends what libraries print to a file; ours goes to copies of the two streams made before.

    Ray writes lines of its own to both, from threads and from C++, and standard output belongs to one ready line.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._out, self.err_fd = os.dup(1), os.dup(2)

    def to(self, path: str) -> None:
        """From now on streams 1 and 2 go to the end of `path`."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def write(self, text: str) -> None:
        """Writes to the true standard output."""
        data = text.encode()
        while data:
            data = data[os.write(self._out, data) :]

    def restore(self) -> None:
        """Gives both streams back."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._out, 1)
        os.dup2(self.err_fd, 2)
