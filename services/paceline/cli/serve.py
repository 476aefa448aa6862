"""`paceline serve`: the stack in the foreground, one ready line, a clean end."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from paceline.cli.progress import Progress, QuietOutput
from paceline.cli.serve_options import ServeOptions, add_arguments, read
from paceline.cli.stack import Ready, Stack
from paceline.cli.stop_signal import Stopped, StopSignal
from paceline.errors import PacelineError, Unavailable

WATCH_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until Ctrl-C or SIGTERM. Returns 0 after a clean end, 1 after an error, 2 for wrong options."""
    parser = argparse.ArgumentParser(prog="paceline serve", description="Serve a model with drafts on a Ray cluster.")
    add_arguments(parser)
    output = QuietOutput()
    with Progress(output.err_fd) as progress, StopSignal() as stop:
        try:
            options = read(parser.parse_args(argv))
        except PacelineError as error:
            progress.say(f"paceline serve: {error}")
            return 2
        code = _serve(options, progress, stop, output)
    output.restore()
    if stop.asked.is_set() or code:
        # A step that was left behind may still wait inside Ray; what it waits for is gone, and it would hold the exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _serve(options: ServeOptions, progress: Progress, stop: StopSignal, output: QuietOutput) -> int:
    stack = Stack(options, progress, stop)
    output.to(str(stack.run_dir / "paceline.log"))
    failed = False
    try:
        ready = stack.start()
        output.print(ready_line(options, ready))
        while not stop.wait(WATCH_S):
            if (fault := stack.fault()) is not None:
                raise Unavailable(fault)
        progress.step("stopping")
    except Stopped:
        progress.drop()
        progress.step("stopping before the start was complete")
    except Exception as error:
        failed = True
        progress.drop()
        progress.say(f"paceline serve: {error if isinstance(error, PacelineError) else unexpected(error)}")
        progress.say(f"logs: {stack.run_dir}")
    finally:
        stack.stop(keep_logs=failed)
    return int(failed)


def unexpected(error: Exception) -> str:
    """One line for an error that is not ours; the whole of it goes where libraries print."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def ready_line(options: ServeOptions, ready: Ready) -> str:
    """The one line on standard output: `paceline ready key=value ...`."""
    app = options.app
    drafter = "none"
    if app.drafter is not None:
        settings = app.drafter.settings
        drafter = str(settings.model) if settings.proposer == "model" else settings.proposer
    facts = {
        "grpc": ready.grpc,
        "http": ready.http,
        "ray": ready.ray,
        "target": app.target.settings.model,
        "drafter": drafter,
    }
    return "paceline ready " + " ".join(f"{name}={value}" for name, value in facts.items())
