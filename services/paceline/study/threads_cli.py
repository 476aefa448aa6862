"""The options of the study of threads."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from paceline.errors import InvalidField
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.acceptance_cli import add_prompt_file
from paceline.study.drafter_option import add_drafter_option, drafter_config, drafter_name
from paceline.study.formats import FORMATS
from paceline.study.ranges import check_ranges
from paceline.study.report import Report

DEFAULT_THREADS = "2:2,2:1,1:1"


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study threads`."""
    add_prompt_file(parser, 1)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--dtype", default="float32", choices=FORMATS, help="of the target (default float32)")
    add_drafter_option(parser, None)
    parser.add_argument(
        "--threads",
        default=DEFAULT_THREADS,
        metavar="LIST",
        help=f"choices TARGET:DRAFTER, the others compared with the first (default {DEFAULT_THREADS})",
    )
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a reply (default 64)")
    parser.add_argument("--repeats", type=int, default=3, help="times that each prompt is decoded (default 3)")


def thread_list(text: str) -> tuple[tuple[int, int], ...]:
    """Choices from "2:2,2:1". Raises InvalidField."""
    found = []
    for part in text.split(","):
        numbers = [int(each) for each in part.strip().split(":") if each.isdecimal()]
        if len(numbers) != 2 or part.count(":") != 1 or not all(1 <= each <= 1024 for each in numbers):
            raise InvalidField("--threads", text, "TARGET:DRAFTER, each from 1 to 1024, with commas between them")
        found.append((numbers[0], numbers[1]))
    if len(set(found)) < len(found):
        raise InvalidField("--threads", text, "each choice once")
    return tuple(found)


def run_threads(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study threads`."""
    threads = thread_list(args.threads)
    check_ranges(args, {"per_category": (1, 1_000_000), "tokens": (4, 100_000), "repeats": (1, 1000)})

    from paceline.prompt_file import load_prompts
    from paceline.study.study_threads import ThreadSettings, study_threads

    settings = ThreadSettings(
        args.model,
        load_prompts(args.prompts, args.per_category),
        drafter_config(args),
        drafter_name(args),
        args.dtype,
        threads,
        args.tokens,
        repeats=args.repeats,
    )
    return asyncio.run(study_threads(settings, progress))
