"""`paceline`: the command line. Exit codes: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from paceline import __version__
from paceline_client.commands import chat, extras, generate, status
from paceline_client.errors import ClientError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    _tolerate_odd_terminals()
    try:
        args = _parser(_called(arguments)).parse_args(arguments)
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left, as `| head` does. Python would complain once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ClientError, extras.ExtraMissing) as error:
        return _fail(error)
    except Exception as error:
        if not isinstance(error, extras.safe_errors()):
            raise
        return _fail(error)
    return code


def _called(arguments: Sequence[str]) -> str | None:
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def _parser(called: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline", description="Speculative decoding as a service.")
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (generate, chat, status):
        command.add_parser(subparsers)
    extras.add_parsers(subparsers, called)
    return parser


def _tolerate_odd_terminals() -> None:
    """A terminal that cannot show a character shows a question mark; the reply does not end for it."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _fail(error: Exception) -> int:
    print(f"paceline: error: {' '.join(str(error).split())}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
