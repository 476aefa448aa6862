"""`paceline models list` and `paceline models fetch NAME`."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.runtime.store import ModelStore, default_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("models", help="list the models known by name, or fetch one")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="known models and whether they are here")
    listing.add_argument("--verify", action="store_true", help="compare the SHA-256 of every file, not just sizes")
    fetch = actions.add_parser("fetch", help="download a model and convert it once")
    fetch.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    for each in (listing, fetch):
        each.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")


def run(args: argparse.Namespace) -> int:
    """Runs the command; errors are raised as PacelineError."""
    store = default_store()
    return _list(store, args) if args.action == "list" else _fetch(store, args)


def _list(store: ModelStore, args: argparse.Namespace) -> int:
    models = store.listing(full=args.verify)
    if args.json:
        fields = [{"name": each.name, "state": each.state, "folder": str(each.folder)} for each in models]
        sys.stdout.write(json.dumps({"models": fields}) + "\n")
        return 0
    table = Table("name", "state", "licence", "description")
    for each in models:
        table.add_row(each.name, each.state, each.licence, each.description)
    Console().print(table)
    return 0


def _fetch(store: ModelStore, args: argparse.Namespace) -> int:
    console = Console(stderr=True)
    with console.status(f"{args.name}: starting") as status:

        def progress(stage: str) -> None:
            status.update(f"{args.name}: {stage}")
            console.print(f"  {args.name}: {stage}")

        folder = store.fetch(args.name, progress)
    if args.json:
        sys.stdout.write(json.dumps({"name": args.name, "folder": str(folder)}) + "\n")
    else:
        sys.stdout.write(f"{folder}\n")
    return 0
