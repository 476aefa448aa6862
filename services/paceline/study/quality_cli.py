"""The options of the study of number formats."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from paceline.errors import InvalidField
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.report import Report


def add_quality(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study dtypes`."""
    parser.add_argument(
        "--prompts", type=Path, required=True, help="JSON lines with prompt: together they are the text"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--dtypes", nargs="+", metavar="FORMAT", help="beside float32 (default: all of this machine)")
    parser.add_argument("--tokens", type=int, default=4096, help="most tokens of the text (default 4096)")


def run_quality(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study dtypes`."""
    from paceline.prompt_file import load_prompts
    from paceline.runtime.models import ModelSpec
    from paceline.runtime.number_format import usable
    from paceline.study.quality import QualitySettings, study_quality

    if not 512 <= args.tokens <= 10_000_000:
        raise InvalidField("--tokens", args.tokens, "512 to 10000000")
    dtypes = args.dtypes or usable(ModelSpec("").resolved_device())
    for dtype in dtypes:
        ModelSpec("", dtype=dtype).number_format()
        if dtype == "auto":
            raise InvalidField("--dtypes", dtype, "float32, bfloat16, int8 or int4")
    settings = QualitySettings(args.model, load_prompts(args.prompts), dtypes, tokens=args.tokens)
    return study_quality(settings, progress)
