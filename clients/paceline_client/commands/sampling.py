"""Options of a reply, shared by `generate` and `chat`."""

from __future__ import annotations

import argparse

from paceline_client.commands.speculation import add_speculation_options, speculation_fields
from paceline_client.request import GenerateFields


def add_reply_options(parser: argparse.ArgumentParser) -> None:
    """Adds --max-tokens, the sampling and the speculation options."""
    reply = parser.add_argument_group("reply")
    reply.add_argument("--max-tokens", type=int, metavar="N", help="most tokens (default: up to the context limit)")
    reply.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: the server's)")
    reply.add_argument("--top-k", type=int, metavar="K", help="sample from the K most probable tokens; 0 from all")
    reply.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the most probable tokens of mass P, 0 to 1"
    )
    reply.add_argument("--seed", type=int, metavar="S", help="repeats a sampled reply")
    reply.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends the reply; may be repeated")
    reply.add_argument("--timeout", type=float, metavar="SECONDS", help="time allowed for a reply (default: no limit)")
    add_speculation_options(parser)


def reply_fields(args: argparse.Namespace) -> GenerateFields:
    """What those options say, as fields of a request."""
    return GenerateFields(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        stop=args.stop,
        **speculation_fields(args),
    )
