"""Options of speculation, shared by `generate` and `chat`."""

from __future__ import annotations

import argparse
from typing import Any

from paceline_client.modes import MODES
from paceline_client.nucleus import Nucleus
from paceline_client.request import AUTO_BUDGET, GenerateFields

# Option, destination: what says something only together with --nucleus-mass.
_WITH_MASS = (
    ("--nucleus-temperature", "nucleus_temperature"),
    ("--max-deviation", "max_deviation"),
    ("--max-deviation-per-token", "max_deviation_per_token"),
    ("--max-relaxations", "max_relaxations"),
)


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    """Adds what is drafted, how long it is waited for, and nucleus verification."""
    drafts = parser.add_argument_group("speculation (changes how fast tokens come; never which, but for sampled)")
    drafts.add_argument("--no-draft", action="store_true", help="decode plainly")
    drafts.add_argument(
        "--budget",
        type=_budget,
        metavar="auto|N",
        help="draft nodes verified per round; auto lets the server choose them anew every round",
    )
    drafts.add_argument(
        "--proposal",
        choices=tuple(MODES["proposal"]),
        help="how drafts are chosen; sampled keeps the law of the reply, not its tokens",
    )
    drafts.add_argument("--strength", type=float, metavar="X", help="coupling strength; coupled proposals only")
    drafts.add_argument(
        "--selection", choices=tuple(MODES["selection"]), help="which of the target's rows shape the next tree"
    )
    drafts.add_argument("--wait", choices=tuple(MODES["wait"]), help="how long the target waits for a tree")
    drafts.add_argument(
        "--draft-deadline-ms", type=int, metavar="MS", help="milliseconds that --wait deadline waits, 1 to 60000"
    )
    drafts.add_argument(
        "--no-learn", action="store_true", help="let no drafter learn from the reply, for other requests"
    )
    nucleus = parser.add_argument_group("nucleus verification (changes which tokens come, within its limits)")
    nucleus.add_argument(
        "--nucleus-mass",
        type=float,
        metavar="M",
        help="accept drafts in the smallest set of most probable tokens of mass M, 0 (exact) to 1",
    )
    nucleus.add_argument("--nucleus-temperature", type=float, metavar="T", help="temperature that set is taken at")
    nucleus.add_argument("--max-deviation", type=float, metavar="B", help="total variation allowed for the whole reply")
    nucleus.add_argument("--max-deviation-per-token", type=float, metavar="R", help="the same per token, as a mean")
    nucleus.add_argument(
        "--max-relaxations", type=int, metavar="K", help="tokens allowed that the exact rule had rejected"
    )


def speculation_fields(args: argparse.Namespace) -> GenerateFields:
    """What those options say, as fields of a request. Ends with a usage error for limits without a mass."""
    return GenerateFields(
        draft=False if args.no_draft else None,
        budget=args.budget,
        proposal=args.proposal,
        strength=args.strength,
        selection=args.selection,
        wait=args.wait,
        draft_deadline_ms=args.draft_deadline_ms,
        learn=False if args.no_learn else None,
        nucleus=_nucleus(args),
    )


def _budget(text: str) -> Any:
    if text == AUTO_BUDGET:
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: auto, or a whole number") from None


def _nucleus(args: argparse.Namespace) -> Nucleus | None:
    given: list[tuple[str, Any]] = [(option, getattr(args, name)) for option, name in _WITH_MASS]
    if args.nucleus_mass is not None:
        temperature, deviation, per_token, relaxations = (value for _, value in given)
        return Nucleus(args.nucleus_mass, temperature, deviation, per_token, relaxations)
    for option, value in given:
        if value is not None:
            args.usage_error(f"{option} {value} needs --nucleus-mass, 0 (the exact rule) to 1; give it or leave it out")
    return None
