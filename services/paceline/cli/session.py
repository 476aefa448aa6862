"""A stack in the foreground of a command: started for it, ended after it, whatever happens in between."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from paceline.cli.progress import Progress, QuietOutput
from paceline.cli.ray_errors import deepest
from paceline.cli.serve_options import ServeOptions
from paceline.cli.stack import Stack
from paceline.cli.stop_signal import Stopped, StopSignal
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    stack: Stack
    progress: Progress  # to standard error
    stop: StopSignal
    output: QuietOutput  # to standard output


def in_session(command: str, options: ServeOptions, work: Callable[[Session], None], stopped: int) -> int:
    """Runs `work` beside a stack of `options`, which `work` starts.

    Returns 0, `stopped` if the user ended it before `work` was through, or 1 after an error, which is told. What
    libraries print goes to a file of the run folder, which stays after an error only.
    """
    output = QuietOutput()
    code = 0
    with Progress(output.err_fd) as progress, StopSignal() as stop:
        stack = Stack(options, progress, stop)
        output.to(str(stack.run_dir / "paceline.log"))
        try:
            work(Session(stack, progress, stop, output))
        except Stopped:
            code = stopped
        except Exception as error:
            code = 1
            progress.drop()
            progress.say(f"paceline {command}: error: {_text(error)}")
        finally:
            keep_logs = code == 1 and stack.started
            if keep_logs:
                progress.say(f"logs: {stack.run_dir}")
            progress.step("stopping")
            stack.stop(keep_logs=keep_logs)
    output.restore()
    if code or stop.asked.is_set():
        # A step that was left behind may still wait inside Ray for what is gone, and would hold a normal exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return 0


def _text(error: Exception) -> str:
    """An error in one line. The whole of one that is not ours goes where libraries print."""
    if isinstance(error, PacelineError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {deepest([str(error)])}"
