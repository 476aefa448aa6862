"""The options of the study of budgets."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from paceline.errors import InvalidField
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.acceptance_cli import add_prompts
from paceline.study.drafter_option import add_drafter_option, drafter_config
from paceline.study.formats import FORMATS
from paceline.study.ranges import check_ranges
from paceline.study.report import Report

RANGES = {
    "per_category": (1, 1_000_000),
    "threads": (1, 1024),
    "sessions": (1, 256),
    "budgets": (0, 64),
    "new_tokens": (8, 100_000),
    "repeats": (2, 1000),
    "temperature": (0, 10),
}


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study budget`."""
    add_prompts(parser, 2)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--dtype", default="float32", choices=FORMATS)
    add_drafter_option(parser, "suffix")
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[1, 4, 16], help="replies decoded at once (default 1 4 16)"
    )
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[0, 2, 4, 8, 16, 32], help="beside auto (default 0 2 4 8 16 32)"
    )
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of a reply (default 64)")
    parser.add_argument("--repeats", type=int, default=5, help="of every cell, at least 2 (default 5)")
    parser.add_argument("--temperature", type=float, default=0.0, help="default 0")


def run_budget(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study budget`."""
    check_ranges(args, RANGES)
    for name in ("sessions", "budgets"):
        if len(set(getattr(args, name))) < len(getattr(args, name)):
            raise InvalidField(f"--{name}", getattr(args, name), "each number once")

    from paceline.prompt_file import load_prompts
    from paceline.study.budget import BudgetSettings
    from paceline.study.study_budget import study_budget

    settings = BudgetSettings(
        sessions=tuple(args.sessions),
        budgets=tuple(args.budgets),
        new_tokens=args.new_tokens,
        repeats=args.repeats,
        temperature=args.temperature,
    )
    drafter = drafter_config(args)
    prompts = load_prompts(args.prompts, args.per_category)
    return study_budget(args.model, args.dtype, drafter, prompts, settings, args.out, args.threads, progress)
