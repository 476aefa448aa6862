"""`paceline chat`: a conversation at the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from paceline_client.commands.connect import add_connection_options, connect
from paceline_client.commands.sampling import add_reply_options, reply_fields
from paceline_client.commands.summary import summary_lines
from paceline_client.commands.tree_view import TreeView, tree_view
from paceline_client.errors import ClientError
from paceline_client.replies import Finish
from paceline_client.request import Chat, GenerateFields, Message
from paceline_client.sync import Client

_HELP = "/reset forgets the conversation, /exit (or Ctrl-D) ends, Ctrl-C stops an answer."


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("chat", help="talk with the model", description=f"Talks with the model. {_HELP}")
    parser.add_argument("--system", metavar="TEXT", help="system message of the conversation")
    parser.add_argument("--show-tree", action="store_true", help="show each round's draft tree before the answer")
    add_reply_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Reads turns until the end of input or /exit."""
    with contextlib.suppress(ImportError):  # not on every system
        import readline  # noqa: F401 - gives `input` line editing and history
    fields = reply_fields(args)
    view = tree_view(sys.stdout) if args.show_tree else None
    fields["trace"] = True if view else None
    opening = [] if args.system is None else [Message("system", args.system)]
    history = list(opening)
    with connect(args) as client:
        info = client.get_model_info()  # says at once if the server is not there
        temperature = info.temperature if args.temperature is None else args.temperature
        _note(f"{info.model} at temperature {temperature:g}. {_HELP}")
        while (line := _read_turn()) is not None:
            if line == "/exit":
                break
            if line == "/reset":
                history = list(opening)
                _note("forgotten")
            elif line.startswith("/"):
                _note(f"{line.split()[0]}: no such command. {_HELP}")
            elif line:
                history = _turn(client, history, line, fields, args.timeout, view)
    return 0


def _read_turn() -> str | None:
    """A line; None at the end of input. Ctrl-C gives an empty one."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        _note("/exit or Ctrl-D ends")
        return ""


def _turn(
    client: Client,
    history: list[Message],
    line: str,
    fields: GenerateFields,
    timeout_s: float | None,
    view: TreeView | None,
) -> list[Message]:
    """Answers one turn; the history with it, or as it was if nothing came of it."""
    asked = [*history, Message("user", line)]
    answer: list[str] = []
    if view:
        view.begin()
    try:
        with client.generate(Chat(asked), timeout_s=timeout_s, **fields) as stream:
            for event in stream:
                if isinstance(event, Finish):
                    if view:
                        view.end()
                        print(f"\n{''.join(answer)}", end="")
                    print(flush=True)
                    _note(*summary_lines(event, nucleus=fields.get("nucleus") is not None))
                    continue
                answer.append(event.text)
                if view:
                    view.show(event.rounds)
                else:
                    print(event.text, end="", flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        _note("stopped")
    except ClientError as error:
        if answer:
            print(flush=True)
        _note(f"error: {error}")
    text = "".join(answer)
    return [*asked, Message("assistant", text)] if text else history


def _note(*lines: str) -> None:
    for line in lines:
        print(f"  {line}", file=sys.stderr, flush=True)
