"""The options of the studies of selection, nucleus verification and overlap."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from paceline.errors import InvalidField
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.report import Report

# The layers of the default model that stay in its truncated copy: dropped one by one, each time the one whose loss
# moves the rows least (on three prompts that no study uses).
DEFAULT_LAYERS = "0-6,8-11,13-16,20-29"


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study selection`."""
    add_prompts(parser, 2)
    add_layers(parser)
    parser.add_argument("--stretch", type=int, default=24, help="tokens of a reply in which rounds begin (default 24)")
    parser.add_argument("--contexts", type=int, default=4, help="contexts of a reply for exact figures (default 4)")


def run_selection(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study selection`."""
    from paceline.prompt_file import load_prompts
    from paceline.study.selection import SelectionSettings
    from paceline.study.study_selection import TargetChoice, study_selection

    try:
        settings = SelectionSettings(stretch=args.stretch, contexts=args.contexts)
    except ValueError as error:
        raise InvalidField("--contexts", args.contexts, str(error)) from error
    targets = [TargetChoice(*each) for each in models_of(args)]
    prompts = load_prompts(args.prompts, args.per_category)
    return study_selection(targets, prompts, settings, args.out, progress, args.threads)


def add_nucleus(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study nucleus`."""
    add_prompts(parser, 1)
    add_layers(parser)
    parser.add_argument("--new-tokens", type=int, default=40, help="tokens of a reply to a prompt (default 40)")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of each kind (default 4)")


def run_nucleus(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study nucleus`."""
    from paceline.prompt_file import load_prompts
    from paceline.study.nucleus import NucleusSettings
    from paceline.study.study_nucleus import study_nucleus

    model, layers = _one_model(args)
    settings = NucleusSettings(new_tokens=args.new_tokens, tasks_per_kind=args.tasks)
    prompts = load_prompts(args.prompts, args.per_category)
    return study_nucleus(model, layers, prompts, settings, args.out, progress, args.threads)


def _one_model(args: argparse.Namespace) -> tuple[str, tuple[int, ...]]:
    (model, layers), *more = models_of(args)
    if more or not layers:
        raise InvalidField("--target", args.target, "one MODEL=LAYERS")
    return model, layers


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study overlap`."""
    add_prompts(parser, 1)
    add_layers(parser)
    parser.add_argument("--rtt-ms", type=float, nargs="+", default=[0, 2, 5, 10], help="round trips (default 0 2 5 10)")
    parser.add_argument("--pass-ms", type=float, default=25, help="a pass of the simulated target (default 25)")
    parser.add_argument("--level-ms", type=float, default=4, help="a level of the simulated drafter (default 4)")
    parser.add_argument("--tokens", type=int, default=240, help="tokens of a simulated reply (default 240)")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens of a real reply (default 48)")


def run_overlap(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study overlap`."""
    from paceline.prompt_file import load_prompts
    from paceline.study.study_overlap import OverlapSettings, study_overlap

    model, layers = _one_model(args)
    for name in ("rtt_ms", "pass_ms", "level_ms"):
        for value in np.atleast_1d(getattr(args, name)):
            if not 0 <= value <= 1000:
                raise InvalidField("--" + name.replace("_", "-"), float(value), "0 to 1000 milliseconds")
    if args.tokens < 24 or args.new_tokens < 24:
        raise InvalidField("--tokens, --new-tokens", (args.tokens, args.new_tokens), "at least 24, for some rounds")
    settings = OverlapSettings(
        rtts_ms=args.rtt_ms,
        pass_ms=args.pass_ms,
        level_ms=args.level_ms,
        tokens=args.tokens,
        new_tokens=args.new_tokens,
        threads=args.threads,
    )
    prompts = load_prompts(args.prompts, args.per_category)
    return study_overlap(settings, model, layers, prompts, args.out, progress)


def add_prompts(parser: argparse.ArgumentParser, per_category: int) -> None:
    """Adds --prompts, --per-category and --threads."""
    add_prompt_file(parser, per_category)
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")


def add_prompt_file(parser: argparse.ArgumentParser, per_category: int) -> None:
    """Adds --prompts and --per-category."""
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with prompt, and optional category")
    parser.add_argument(
        "--per-category", type=int, default=per_category, help=f"prompts of each category (default {per_category})"
    )


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Adds --target."""
    parser.add_argument(
        "--target",
        action="append",
        metavar="MODEL[=LAYERS]",
        help="a target and the layers of it that make its model drafter, such as 0-9,20-29; may be given several times "
        f"(default: {DEFAULT_MODEL}={DEFAULT_LAYERS})",
    )


def models_of(args: argparse.Namespace) -> list[tuple[str, tuple[int, ...]]]:
    """Each --target with its layers; none for a target without a model drafter."""
    from paceline.study.loaded import layer_list

    found = []
    for text in args.target or [f"{DEFAULT_MODEL}={DEFAULT_LAYERS}"]:
        model, _, layers = text.partition("=")
        try:
            found.append((model, layer_list(layers) if layers else ()))
        except ValueError as error:
            raise InvalidField("--target", text, "MODEL or MODEL=LAYERS, such as 0-9,20-29") from error
    return found
