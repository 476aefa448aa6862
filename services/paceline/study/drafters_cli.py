"""The options of the study of drafters."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from paceline.errors import InvalidField
from paceline.study.acceptance_cli import add_layers, add_prompts, models_of
from paceline.study.ranges import check_ranges
from paceline.study.report import Report


def add_drafters(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `study drafters`."""
    add_prompts(parser, 2)
    add_layers(parser)
    parser.add_argument(
        "--drafter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a model drafter beside the one made of the target's layers, alone and fused, also with the texts in its"
        " folder; a known name needs no folder; may be given several times",
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 8, 16], help="nodes of a tree (default 4 8 16)")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.7], help="of the results (default 0 0.7)"
    )
    parser.add_argument("--prompt-tokens", type=int, default=192, help="most tokens of a prompt (default 192)")
    parser.add_argument(
        "--replay",
        action="store_true",
        help="walk trees along plain replies instead of verifying them: the same rounds, and no target passes",
    )
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of a reply (default 64)")
    parser.add_argument(
        "--served-tokens",
        type=int,
        default=20_000,
        help="tokens that the suffix proposer's store has served before; 0 leaves it out (default 20000)",
    )


def run_drafters(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """Runs `study drafters`."""
    from paceline.prompt_file import load_prompts
    from paceline.runtime.store import default_store
    from paceline.study.drafters import DrafterSettings
    from paceline.study.study_drafters import study_drafters

    (model, layers), *more = models_of(args)
    if more:
        raise InvalidField("--target", args.target, "one MODEL or MODEL=LAYERS")
    check_ranges(args, {"budgets": (1, 64), "temperatures": (0, 2)})
    if min(args.new_tokens, args.per_category) < 1 or args.served_tokens < 0 or args.prompt_tokens < 32:
        got = (args.new_tokens, args.per_category, args.served_tokens, args.prompt_tokens)
        named = "--new-tokens, --per-category, --served-tokens, --prompt-tokens"
        raise InvalidField(named, got, "at least 1, 1, 0 and 32")
    folders: dict[str, Path] = {}
    for text in args.drafter:
        name, given, folder = text.partition("=")
        folders[name] = Path(folder) if given else default_store().resolve(name)
        if not name or not (folders[name] / "config.json").is_file():
            raise InvalidField("--drafter", text, "NAME=FOLDER, a folder with a config.json, or a known name")
    settings = DrafterSettings(
        budgets=tuple(args.budgets),
        temperatures=tuple(args.temperatures),
        prompt_tokens=args.prompt_tokens,
        new_tokens=args.new_tokens,
        replay=args.replay,
    )
    prompts = load_prompts(args.prompts, args.per_category)
    measured = {(prompt.category, prompt.id) for prompt in prompts}
    others = [each for each in load_prompts(args.prompts) if (each.category, each.id) not in measured]
    return study_drafters(
        model, layers, folders, prompts, others, args.served_tokens, settings, args.out, progress, args.threads
    )
