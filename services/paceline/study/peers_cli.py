"""The options of the study that compares our decoding with that of others."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

from paceline.errors import InvalidField
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.acceptance_cli import DEFAULT_LAYERS, add_prompts
from paceline.study.drafter_option import add_drafter_option, drafter_config, drafter_name
from paceline.study.formats import FORMATS, format_list
from paceline.study.ranges import check_ranges
from paceline.study.report import Report

RANGES = {
    "per_category": (1, 1_000_000),
    "tokens": (4, 100_000),
    "repeats": (1, 1000),
    "at_once": (2, 256),  # a pass of the target has a token for each
    "batches": (2, 1000),
    "threads": (1, 1024),
    "drafter_threads": (1, 1024),
}


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study peers`."""
    add_prompts(parser, 1)
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument(
        "--dtype",
        default=",".join(FORMATS),
        metavar="LIST",
        help="our formats, float32 among them; one that this machine cannot do is skipped"
        f" (default {','.join(FORMATS)})",
    )
    add_drafter_option(parser, None)
    parser.add_argument("--drafter-threads", type=int, default=1, help="of our drafter (default 1)")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a reply (default 64)")
    parser.add_argument("--repeats", type=int, default=2, help="times that each prompt is decoded (default 2)")
    parser.add_argument("--at-once", type=int, default=8, help="sessions that are decoded together (default 8)")
    parser.add_argument("--batches", type=int, default=4, help="times that they are, at least 2 (default 4)")
    parser.add_argument(
        "--assistant-layers",
        metavar="LAYERS",
        help="layers of the model that make the assistant of transformers, such as 0-9,20-29"
        f" (default for {DEFAULT_MODEL}: {DEFAULT_LAYERS}; for others none, and it is skipped)",
    )
    parser.add_argument("--no-llama", action="store_true", help="leave llama.cpp out")


def run_peers(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study peers`."""
    dtypes = format_list(args.dtype)
    if "float32" not in dtypes:
        raise InvalidField("--dtype", args.dtype, "float32 among them", "The others are compared with it.")
    check_ranges(args, RANGES)

    from paceline.prompt_file import load_prompts
    from paceline.study.loaded import layer_list
    from paceline.study.study_peers import PeerSettings, study_peers

    layers = args.assistant_layers or (DEFAULT_LAYERS if args.model == DEFAULT_MODEL else "")
    try:
        assistant = layer_list(layers) if layers else ()
    except ValueError as error:
        raise InvalidField("--assistant-layers", layers, "layers such as 0-9,20-29") from error

    settings = PeerSettings(
        args.model,
        load_prompts(args.prompts, args.per_category),
        ("float32", *(dtype for dtype in dtypes if dtype != "float32")),
        drafter_config(args),
        drafter_name(args),
        new_tokens=args.tokens,
        repeats=args.repeats,
        at_once=args.at_once,
        batches=args.batches,
        threads=args.threads,
        drafter_threads=args.drafter_threads,
        assistant_layers=assistant,
        llama=not args.no_llama,
    )
    return asyncio.run(study_peers(settings, args.out, progress))
