"""Commands that live in the server package. Their code is imported only when one of them is called."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Extra:
    """A command of the server package."""

    module: str  # has add_parser(subparsers) and run(args) -> int
    extra: str  # what to install for it
    help: str


EXTRAS = {
    "serve": Extra("paceline.cli.serve", "serve", "run the server here"),
    "demo": Extra("paceline.cli.demo", "serve", "start everything, answer a prompt, compare with plain decoding"),
    "models": Extra("paceline.cli.models", "serve", "list and fetch models"),
    "train": Extra("paceline.train.cli", "serve,study", "make a drafter for a model"),
    "study": Extra("paceline.study.cli", "serve,study", "run experiments and benchmarks"),
}


class ExtraMissing(Exception):
    """The command's packages are not installed; the text holds the command that installs them."""


def add_parsers(subparsers: Any, called: str | None) -> None:
    """Adds the called command in full, and of the others their help line."""
    for name, extra in EXTRAS.items():
        if name == called:
            module = _load(name, extra)
            module.add_parser(subparsers)
            subparsers.choices[name].set_defaults(run=module.run)
        else:
            subparsers.add_parser(name, help=extra.help)


def _load(name: str, extra: Extra) -> ModuleType:
    try:
        return importlib.import_module(extra.module)
    except ModuleNotFoundError as error:
        missing = error.name or "a package"
        raise ExtraMissing(
            f"paceline {name} needs {missing}, which is not installed; run: pip install 'paceline[{extra.extra}]'"
        ) from None


def safe_errors() -> tuple[type[Exception], ...]:
    """Error types of the server package whose text is meant for people; empty if it was never imported."""
    module = sys.modules.get("paceline.errors")
    return () if module is None else (module.PacelineError,)
