"""`paceline train corpus`, `drafter`, `export` and `texts`."""

from __future__ import annotations

import argparse

from paceline.train.corpus_cli import add_corpus, run_corpus
from paceline.train.drafter_cli import add_drafter, add_export, run_drafter, run_export
from paceline.train.texts import add_texts, run_texts

_COMMANDS = {
    "corpus": (add_corpus, run_corpus, "let the target write text to learn from"),
    "drafter": (add_drafter, run_drafter, "distil a small drafter from a corpus"),
    "export": (add_export, run_export, "write the drafter of a run again, in another number format"),
    "texts": (add_texts, run_texts, "write a corpus's replies as a file for the suffix proposer's store"),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("train", help="make a drafter for a model")
    commands = parser.add_subparsers(dest="train", metavar="WHAT", required=True)
    for name, (add, _, text) in _COMMANDS.items():
        add(commands.add_parser(name, help=text))


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code; errors are raised as PacelineError."""
    _, command, _ = _COMMANDS[args.train]
    return command(args)
