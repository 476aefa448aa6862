"""The options of the study of speed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.acceptance_cli import add_prompt_file
from paceline.study.drafter_option import add_drafter_option, drafter_config
from paceline.study.formats import FORMATS
from paceline.study.ranges import check_ranges
from paceline.study.report import Report

RANGES = {
    "per_category": (1, 1_000_000),
    "pairs": (2, 100_000),
    "new_tokens": (4, 100_000),
    "warm_tokens": (0, 100_000_000),
}


def add_speed(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study speed`."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--dtype", default="float32", choices=FORMATS, help="of the target (default float32)")
    add_prompt_file(parser, 2)
    add_drafter_option(parser, "suffix")
    parser.add_argument("--new-tokens", type=int, default=96, help="tokens of a reply (default 96)")
    parser.add_argument(
        "--pairs",
        type=int,
        default=52,
        help="interleaved pairs of each comparison, at least 2; twice the number of prompts or more leaves the spread"
        " between prompts out of the interval (default 52)",
    )
    parser.add_argument(
        "--warm-tokens",
        type=int,
        default=100_000,
        help="tokens served before the last comparison, 0 leaves it out; served again by a run that goes on, if pairs"
        " after it are missing (default 100000)",
    )


def run_speed(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study speed`."""
    check_ranges(args, RANGES)

    from paceline.prompt_file import load_prompts
    from paceline.study.speed import SpeedSettings, study_speed

    settings = SpeedSettings(
        args.model,
        load_prompts(args.prompts, args.per_category),
        args.dtype,
        new_tokens=args.new_tokens,
        pairs=args.pairs,
        warm_tokens=args.warm_tokens,
        drafter=drafter_config(args),
        drafter_name=args.drafter,
    )
    return asyncio.run(study_speed(settings, args.out, progress))
