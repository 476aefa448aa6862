"""`paceline serve`: the stack in the foreground, one ready line, a clean end."""

from __future__ import annotations

import argparse
from typing import Any

from paceline.cli.serve_options import ServeOptions, add_arguments, drafter_flag, read
from paceline.cli.session import Session, in_session
from paceline.cli.stack import Ready
from paceline.errors import Unavailable

WATCH_S = 0.5


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "serve",
        help="run the server here",
        description="Serves a model with drafts until Ctrl-C or SIGTERM. Prints one ready line.",
    )
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serves. Returns 0 after a clean end. Raises PacelineError for wrong options."""
    options = read(args)

    def serve(session: Session) -> None:
        session.output.write(ready_line(options, session.stack.start()) + "\n")
        while not session.stop.wait(WATCH_S):
            if (fault := session.stack.fault()) is not None:
                raise Unavailable(fault)

    return in_session("serve", options, serve, stopped=0)


def ready_line(options: ServeOptions, ready: Ready) -> str:
    """The one line on standard output: `paceline ready key=value ...`."""
    app = options.app
    drafter = "none"
    if app.drafter is not None:
        settings = app.drafter.settings
        drafter = drafter_flag(settings.proposer, settings.model)
    facts = {
        "grpc": ready.grpc,
        "http": ready.http,
        "ray": ready.ray,
        "target": app.target.settings.model,
        "drafter": drafter,
    }
    return "paceline ready " + " ".join(f"{name}={value}" for name, value in facts.items())
