"""`--drafter` of studies that run the whole stack, spelt as in `paceline serve`."""

from __future__ import annotations

import argparse

from paceline.cli.serve_options import drafter_dtype, drafter_of
from paceline.drafter.config import DrafterConfig


def add_drafter_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds `--drafter` and `--drafter-dtype`."""
    parser.add_argument(
        "--drafter", default=default, metavar="WHAT", help=f'"suffix", MODEL or "fused:MODEL" (default {default})'
    )
    parser.add_argument(
        "--drafter-dtype", choices=["float32", "bfloat16", "int8", "int4"], help="of its model (default: --dtype)"
    )


def drafter_config(args: argparse.Namespace) -> DrafterConfig:
    """The drafter that is named, for `args.model`. Raises InvalidField."""
    proposer, model = drafter_of(args.drafter)
    if model is None:
        return DrafterConfig()
    given = {"proposer": proposer, "model": model, "target_model": args.model}
    return DrafterConfig.model_validate({**given, "dtype": drafter_dtype(args.drafter_dtype, args.dtype)})
