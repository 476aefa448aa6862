"""`paceline generate`: one reply to a prompt, or several."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from paceline_client.commands.connect import add_connection_options, connect
from paceline_client.commands.in_order import in_order
from paceline_client.commands.sampling import add_reply_options, reply_fields
from paceline_client.commands.summary import replies_json, reply_json, summary_lines
from paceline_client.commands.trace_file import TraceFile
from paceline_client.commands.tree_view import TreeView, tree_view
from paceline_client.replies import Event, Finish, Replies, Reply
from paceline_client.request import Chat, Prompt


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("generate", help="answer one prompt", description="Answers one prompt.")
    parser.add_argument("prompt", metavar="PROMPT", help='the prompt; "-" reads it from standard input')
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument(
        "-n", "--choices", type=int, metavar="N", help="replies to the prompt, shown one after the other (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--show-tree", action="store_true", help="show each round's draft tree and what became of it")
    parser.add_argument("--trace", metavar="FILE", help="write each round to FILE, one JSON object a line")
    add_reply_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Streams the reply to standard output and its figures to standard error.

    With --show-tree the trees are streamed in place of the text, which follows them; beside --json they go to standard
    error. Of several replies the first is streamed, then the next with what has come of it, each under its number.
    """
    if args.raw and args.system is not None:
        args.usage_error("--system needs the chat template; leave out --raw")
    fields = reply_fields(args)
    prompt = _prompt(args)
    with ExitStack() as opened:
        trace = opened.enter_context(TraceFile(args.trace)) if args.trace is not None else None
        view = tree_view(sys.stderr if args.json else sys.stdout) if args.show_tree else None
        fields["n"], fields["trace"] = args.choices, True if trace or view else None
        client = opened.enter_context(connect(args))
        stream = opened.enter_context(client.generate(prompt, timeout_s=args.timeout, **fields))
        _show(in_order(_traced(stream, trace)), args, view)
    return 0


def _prompt(args: argparse.Namespace) -> Prompt:
    text: str = sys.stdin.read() if args.prompt == "-" else args.prompt
    return text if args.raw else Chat.user(text, args.system)


def _traced(events: Iterable[Event], trace: TraceFile | None) -> Iterator[Event]:
    for event in events:
        if trace:
            trace.write(event)
        yield event


def _show(events: Iterable[Event], args: argparse.Namespace, view: TreeView | None) -> None:
    """Shows replies one after the other."""
    several = args.choices not in (None, 1)
    growing = Replies()
    replies: list[Reply] = []
    begun = 0
    for event in events:
        if several and event.index == begun:
            _head(begun, args, view)
            begun += 1
        reply = growing.add(event)
        if isinstance(event, Finish):
            if view:
                view.end()
                view.begin()
        elif view:
            view.show(event.rounds)
        elif not args.json:
            print(event.text, end="", flush=True)
        if reply is not None:
            replies.append(reply)
            if not args.json:
                _end(reply, args, several)
    if args.json:
        content = replies_json(replies) if several else reply_json(replies[0])
        print(json.dumps(content, ensure_ascii=False), flush=True)


def _head(index: int, args: argparse.Namespace, view: TreeView | None) -> None:
    """The line above one of several replies; beside --json above its trees."""
    if not args.json or view:
        space = "\n" if index else ""
        print(f"{space}--- choice {index} ---", file=sys.stderr if args.json else sys.stdout, flush=True)


def _end(reply: Reply, args: argparse.Namespace, several: bool) -> None:
    if args.show_tree:  # the text was not shown between the trees
        print(f"\n{reply.text}", end="", flush=True)
    if not reply.text.endswith("\n"):
        print(flush=True)
    name = f"choice {reply.finish.index}: " if several else ""
    for line in summary_lines(reply.finish, nucleus=args.nucleus_mass is not None):
        print(f"{name}{line}", file=sys.stderr, flush=True)
