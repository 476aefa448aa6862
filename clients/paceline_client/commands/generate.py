"""`paceline generate`: one reply."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from paceline_client.commands.connect import add_connection_options, connect
from paceline_client.commands.sampling import add_reply_options, reply_fields
from paceline_client.commands.summary import reply_json, summary_lines
from paceline_client.replies import Finish, Reply
from paceline_client.request import Chat, Prompt


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("generate", help="answer one prompt", description="Answers one prompt.")
    parser.add_argument("prompt", metavar="PROMPT", help='the prompt; "-" reads it from standard input')
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_reply_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Streams the reply to standard output and its figures to standard error."""
    if args.raw and args.system is not None:
        args.usage_error("--system needs the chat template; leave out --raw")
    prompt = _prompt(args)
    text: list[str] = []
    token_ids: list[int] = []
    with (
        connect(args) as client,
        client.generate(prompt, timeout_s=args.timeout, **reply_fields(args)) as stream,
    ):
        for event in stream:
            if isinstance(event, Finish):
                _end(Reply("".join(text), tuple(token_ids), event), args.json)
            else:
                text.append(event.text)
                token_ids.extend(event.token_ids)
                if not args.json:
                    print(event.text, end="", flush=True)
    return 0


def _prompt(args: argparse.Namespace) -> Prompt:
    text: str = sys.stdin.read() if args.prompt == "-" else args.prompt
    return text if args.raw else Chat.user(text, args.system)


def _end(reply: Reply, as_json: bool) -> None:
    if as_json:
        print(json.dumps(reply_json(reply), ensure_ascii=False), flush=True)
        return
    if not reply.text.endswith("\n"):
        print(flush=True)
    for line in summary_lines(reply.finish):
        print(line, file=sys.stderr)
