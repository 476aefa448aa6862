"""`paceline models list` and `paceline models fetch NAME`."""

from __future__ import annotations

import argparse
import json
import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.runtime.store import ModelStore, default_store


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("models", help="list the models known by name, or fetch one")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="known models and whether they are here")
    listing.add_argument(
        "--verify",
        action="store_true",
        help="compare the SHA-256 of every file, not just its size; exit code 1 if a model is damaged",
    )
    fetch = actions.add_parser("fetch", help="download a model and convert it once")
    fetch.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    fetch.add_argument(
        "--accept-terms", action="store_true", help="you have read and accept the terms of a model that has some"
    )
    for each in (listing, fetch):
        each.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code; errors are raised as PacelineError."""
    store = default_store()
    return _list(store, args) if args.action == "list" else _fetch(store, args)


def _list(store: ModelStore, args: argparse.Namespace) -> int:
    models = store.listing(full=args.verify)
    if args.json:
        fields = [
            {
                "name": each.name,
                "state": each.state,
                "folder": str(each.folder),
                "licence": each.licence,
                "description": each.description,
            }
            for each in models
        ]
        sys.stdout.write(json.dumps({"models": fields}) + "\n")
    else:
        table = Table(Column("name", no_wrap=True), "state", "licence", "description")
        for each in models:
            table.add_row(*map(Text, (each.name, each.state, each.licence, each.description)))
        Console().print(table)
    damaged = any(each.state not in ("ready", "absent") for each in models)
    return int(damaged and args.verify)


def _fetch(store: ModelStore, args: argparse.Namespace) -> int:
    with FetchProgress(args.name) as progress:
        folder = store.fetch(args.name, progress.stage, progress.count, accept_terms=args.accept_terms)
    if args.json:
        sys.stdout.write(json.dumps({"name": args.name, "folder": str(folder)}) + "\n")
    else:
        sys.stdout.write(f"{folder}\n")
    return 0


class FetchProgress:
    """A line for each stage on standard error, and below them, on a terminal, a bar for the running one."""

    def __init__(self, name: str, console: Console | None = None) -> None:
        """`console`: where to write; standard error unless given."""
        self._name = name
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console or Console(stderr=True, highlight=False, markup=False, soft_wrap=True),
            transient=True,
        )
        self._task: TaskID | None = None

    def stage(self, text: str) -> None:
        """A stage begins."""
        self._bars.console.print(f"{self._name}: {text}")
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=None, amount="")

    def count(self, done: int, total: int) -> None:
        """`done` of `total` bytes of the running stage are here; total is 0 if unknown."""
        if self._task is not None:
            amount = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"
            self._bars.update(self._task, completed=done, total=total or None, amount=amount, refresh=True)

    def __enter__(self) -> FetchProgress:
        if self._bars.console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars.console.is_terminal:  # elsewhere it would leave an empty line
            self._bars.stop()
