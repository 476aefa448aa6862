"""`paceline demo`: starts everything, streams an answer, decodes the same prompt plainly, and tells the difference."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from paceline.cli.ports import free_ports
from paceline.cli.serve_options import ServeOptions, add_arguments, read
from paceline.cli.session import Session, in_session
from paceline_client.commands.summary import accepted_per_round, fallbacks, rate, reply_json
from paceline_client.replies import Finish, Reply
from paceline_client.request import Chat
from paceline_client.sync import Client

# An edit of given text, which is where statistics of the session's own text have something to say.
PROMPT = """\
Add a docstring to each method of this class and print the whole class:

class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
"""
MAX_TOKENS = 160
WARM_UP_TOKENS = 8  # so that neither run pays for what happens only once
REPLY_TIMEOUT_S = 600.0


def add_parser(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "demo",
        help="start everything, answer a prompt, compare with plain decoding",
        description="Starts the whole stack on this machine, answers a prompt with drafts, then plainly, and ends it.",
    )
    parser.add_argument("--prompt", default=PROMPT, help="another prompt")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"most tokens ({MAX_TOKENS})")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the demonstration and returns 0 if it went through."""
    options = _on_free_ports(read(args), args)

    def show(session: Session) -> None:
        _fetch(options.app.target.settings.model, session)
        ready = session.stack.start()
        comparison = session.stop.call(lambda: _compare(ready.grpc, args, session))
        session.output.write(
            json.dumps(comparison.as_json(), ensure_ascii=False) + "\n" if args.json else comparison.text() + "\n"
        )

    return in_session("demo", options, show, stopped=130)


def _on_free_ports(options: ServeOptions, args: argparse.Namespace) -> ServeOptions:
    """A demonstration must not fail because something else listens on a usual port."""
    http, grpc = free_ports(2)
    return replace(
        options,
        http_port=options.http_port if args.http_port or args.config else http,
        grpc_port=options.grpc_port if args.grpc_port or args.config else grpc,
    )


def _fetch(model: str, session: Session) -> None:
    """Brings the model if it is one of those that can be fetched, or checks it if it is here."""
    from paceline.runtime.known_models import KNOWN_MODELS
    from paceline.runtime.store import default_store

    if model in KNOWN_MODELS:
        session.progress.step(f"bringing {model}")
        store = default_store()
        session.stop.call(lambda: store.fetch(model, session.progress.detail))


def _compare(address: str, args: argparse.Namespace, session: Session) -> Comparison:
    prompt = Chat.user(args.prompt)
    with Client(address) as client:
        session.progress.step("warming up")
        client.complete(prompt, max_tokens=WARM_UP_TOKENS, temperature=0.0, draft=False, timeout_s=REPLY_TIMEOUT_S)
        session.progress.done()
        echo: Callable[[str], None] = (lambda text: None) if args.json else session.output.write
        echo(f"\n{args.prompt.rstrip()}\n\n")
        drafted = _reply(client, prompt, args.max_tokens, True, echo)
        echo("\n\n")
        session.progress.step("the same prompt without drafts")
        plain = _reply(client, prompt, args.max_tokens, False, lambda text: None)
        session.progress.done()
    return Comparison(args.prompt, drafted, plain)


def _reply(client: Client, prompt: Chat, max_tokens: int, draft: bool, echo: Callable[[str], None]) -> Reply:
    text: list[str] = []
    tokens: list[int] = []
    with client.generate(
        prompt, max_tokens=max_tokens, temperature=0.0, draft=draft, timeout_s=REPLY_TIMEOUT_S
    ) as stream:
        for event in stream:
            if isinstance(event, Finish):
                return Reply("".join(text), tuple(tokens), event)
            text.append(event.text)
            tokens.extend(event.token_ids)
            echo(event.text)
    raise AssertionError("the client raises if a stream ends without a finish")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same prompt decoded with drafts and plainly."""

    prompt: str
    drafted: Reply
    plain: Reply

    @property
    def same_tokens(self) -> bool:
        """Whether both replies are equal token by token."""
        return self.drafted.token_ids == self.plain.token_ids

    @property
    def ratio(self) -> float | None:
        """Decoding speed with drafts over the plain one, None where a reply is too short to tell."""
        drafted, plain = tokens_per_s(self.drafted.finish), tokens_per_s(self.plain.finish)
        return drafted / plain if drafted and plain else None

    def text(self) -> str:
        """The summary for people."""
        speculation = self.drafted.finish.speculation
        rows = [
            ("", "with drafts", "plain"),
            ("tokens", *(str(reply.finish.usage.completion_tokens) for reply in (self.drafted, self.plain))),
            ("speed", rate(self.drafted.finish), rate(self.plain.finish)),
            (
                "time to first token",
                *(f"{reply.finish.timings.ttft_s:.2f} s" for reply in (self.drafted, self.plain)),
            ),
            ("rounds", str(speculation.rounds), str(self.plain.finish.speculation.rounds)),
            ("accepted per round", f"{accepted_per_round(speculation):.2f}", "-"),
            ("fallbacks", fallbacks(speculation), "-"),
            ("same tokens", "yes" if self.same_tokens else "NO", ""),
            ("against plain", "-" if self.ratio is None else f"{self.ratio:.2f} times", ""),
        ]
        return "\n".join(f"{name:<20} {left:>16} {right:>16}".rstrip() for name, left, right in rows)

    def as_json(self) -> dict[str, object]:
        """The summary for programs."""
        return {
            "prompt": self.prompt,
            "with_drafts": {**reply_json(self.drafted), "tokens_per_s": tokens_per_s(self.drafted.finish)},
            "plain": {**reply_json(self.plain), "tokens_per_s": tokens_per_s(self.plain.finish)},
            "accepted_per_round": accepted_per_round(self.drafted.finish.speculation),
            "same_tokens": self.same_tokens,
            "ratio": self.ratio,
        }


def tokens_per_s(finish: Finish) -> float | None:
    """Tokens per second after the first, None for fewer than two tokens."""
    seconds = finish.timings.total_s - finish.timings.ttft_s
    after_first = finish.usage.completion_tokens - 1
    return after_first / seconds if after_first > 0 and seconds > 0 else None
