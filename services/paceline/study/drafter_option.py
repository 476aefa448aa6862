"""`--drafter` of studies that run the whole stack, spelt as in `paceline serve`."""

from __future__ import annotations

import argparse

from paceline.cli.serve_options import FUSED, SUFFIX, drafter_of
from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.runtime.shipped import shipped_for
from paceline.study.formats import CHOICES


def add_drafter_option(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Adds `--drafter` and `--drafter-dtype`. `default` None: what `paceline serve` would take for the model."""
    shown = default or "fused with the drafter that comes with Paceline for the model, or suffix where there is none"
    parser.add_argument(
        "--drafter", default=default, metavar="WHAT", help=f'"suffix", MODEL or "fused:MODEL" (default {shown})'
    )
    parser.add_argument("--drafter-dtype", choices=CHOICES, default="auto", help="of its model (default auto)")


def drafter_name(args: argparse.Namespace) -> str:
    """The drafter that is named, or the default one of `args.model`."""
    if args.drafter is not None:
        return str(args.drafter)
    own = shipped_for(args.model)
    return SUFFIX if own is None else f"{FUSED}{own}"


def drafter_config(args: argparse.Namespace) -> DrafterConfig:
    """That drafter, for `args.model`. Raises InvalidField."""
    proposer, model = drafter_of(drafter_name(args))
    if model is None and args.drafter_dtype != "auto":
        raise InvalidField("--drafter-dtype", args.drafter_dtype, "absent, since the drafter is no model")
    if model is None:
        return DrafterConfig()
    given = {"proposer": proposer, "model": model, "target_model": args.model}
    return DrafterConfig.model_validate({**given, "dtype": args.drafter_dtype})
