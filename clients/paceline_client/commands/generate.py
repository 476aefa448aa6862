"""`paceline generate`: one reply."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from typing import Any

from paceline_client.commands.connect import add_connection_options, connect
from paceline_client.commands.sampling import add_reply_options, reply_fields
from paceline_client.commands.summary import reply_json, summary_lines
from paceline_client.commands.trace_file import TraceFile
from paceline_client.commands.tree_view import tree_view
from paceline_client.replies import Finish, Reply
from paceline_client.request import Chat, Prompt


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("generate", help="answer one prompt", description="Answers one prompt.")
    parser.add_argument("prompt", metavar="PROMPT", help='the prompt; "-" reads it from standard input')
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--show-tree", action="store_true", help="show each round's draft tree and what became of it")
    parser.add_argument("--trace", metavar="FILE", help="write each round to FILE, one JSON object a line")
    add_reply_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Streams the reply to standard output and its figures to standard error.

    With --show-tree the trees are streamed in place of the text, which follows them; beside --json they go to standard
    error.
    """
    if args.raw and args.system is not None:
        args.usage_error("--system needs the chat template; leave out --raw")
    fields = reply_fields(args)
    prompt = _prompt(args)
    nucleus = fields["nucleus"] is not None
    text: list[str] = []
    token_ids: list[int] = []
    with ExitStack() as opened:
        trace = opened.enter_context(TraceFile(args.trace)) if args.trace is not None else None
        view = tree_view(sys.stderr if args.json else sys.stdout) if args.show_tree else None
        fields["trace"] = True if trace or view else None
        client = opened.enter_context(connect(args))
        stream = opened.enter_context(client.generate(prompt, timeout_s=args.timeout, **fields))
        for event in stream:
            if isinstance(event, Finish):
                if view:
                    view.end()
                if trace:
                    trace.end(event)
                _end(Reply("".join(text), tuple(token_ids), event), args, nucleus)
                continue
            text.append(event.text)
            token_ids.extend(event.token_ids)
            if trace:
                trace.write(event.rounds)
            if view:
                view.show(event.rounds)
            elif not args.json:
                print(event.text, end="", flush=True)
    return 0


def _prompt(args: argparse.Namespace) -> Prompt:
    text: str = sys.stdin.read() if args.prompt == "-" else args.prompt
    return text if args.raw else Chat.user(text, args.system)


def _end(reply: Reply, args: argparse.Namespace, nucleus: bool) -> None:
    if args.json:
        print(json.dumps(reply_json(reply), ensure_ascii=False), flush=True)
        return
    if args.show_tree:  # the text was not shown between the trees
        print(f"\n{reply.text}", end="", flush=True)
    if not reply.text.endswith("\n"):
        print(flush=True)
    for line in summary_lines(reply.finish, nucleus=nucleus):
        print(line, file=sys.stderr)
