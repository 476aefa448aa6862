"""The options of the study of passes."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.formats import FORMATS, format_list, number_list
from paceline.study.ranges import check_ranges
from paceline.study.report import Report


def add_pass(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study pass`."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument(
        "--dtype",
        default=",".join(FORMATS),
        metavar="LIST",
        help=f"formats; one that this machine cannot do is skipped (default {','.join(FORMATS)})",
    )
    parser.add_argument(
        "--tokens", default="1,2,4,8,12,16,32", metavar="LIST", help="of a session in a pass (default 1,2,4,8,12,16,32)"
    )
    parser.add_argument("--sessions", default="1,4,16", metavar="LIST", help="in a pass (default 1,4,16)")
    parser.add_argument("--context", type=int, default=256, help="tokens of a session before them (default 256)")
    parser.add_argument("--rounds", type=int, default=12, help="runs of every pass, at least 2 (default 12)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")


def run_pass(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study pass`."""
    dtypes = format_list(args.dtype)
    tokens, sessions = number_list("--tokens", args.tokens, 1024), number_list("--sessions", args.sessions, 256)
    check_ranges(args, {"context": (1, 65536), "rounds": (2, 1000), "threads": (1, 1024)})

    from paceline.runtime.store import default_store
    from paceline.study.passes import PassSettings
    from paceline.study.study_pass import study_pass

    settings = PassSettings(
        default_store().resolve(args.model),
        dtypes,
        tokens,
        sessions,
        args.context,
        args.rounds,
        args.threads,
        args.device,
    )
    return study_pass(settings, args.out, progress)
