"""`paceline study NAME`: measurements, as JSON and a table."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.study.acceptance_cli import (
    add_nucleus,
    add_overlap,
    add_prompt_file,
    add_selection,
    run_nucleus,
    run_overlap,
    run_selection,
)
from paceline.study.budget_cli import add_budget, run_budget
from paceline.study.drafters_cli import add_drafters, run_drafters
from paceline.study.formats import FORMATS
from paceline.study.pass_cli import add_pass, run_pass
from paceline.study.peers_cli import add_peers, run_peers
from paceline.study.quality_cli import add_quality, run_quality
from paceline.study.ranges import check_out
from paceline.study.report import Report
from paceline.study.speed_cli import add_speed, run_speed
from paceline.study.threads_cli import add_threads, run_threads

GOING_ON = ", and for finished parts, from which the same command goes on after it was broken off"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("study", help="measure this machine, or check the rules' laws")
    studies = parser.add_subparsers(dest="study", required=True)
    equality = studies.add_parser("equality", help="speculative against plain decoding, token by token")
    speed = studies.add_parser("speed", help="plain and drafted decoding through the whole stack")
    overhead = studies.add_parser("overhead", help="what a round costs without compute")
    selection = studies.add_parser("selection", help="expected acceptance by selection rule and budget")
    nucleus = studies.add_parser("nucleus", help="nucleus verification by mass: acceptance, deviation, task scores")
    overlap = studies.add_parser("overlap", help="round times by selection rule, overlapped and not")
    drafters = studies.add_parser("drafters", help="drafters by budget, temperature and coupling strength")
    budget = studies.add_parser("budget", help="tokens per second by draft budget and load, the chosen one beside")
    dtypes = studies.add_parser("dtypes", help="what coarser number formats cost: perplexity, greedy agreement")
    for each in (equality, speed, overhead, selection, nucleus, overlap, drafters, budget, dtypes):
        going_on = GOING_ON if each in (speed, selection, nucleus, overlap, drafters, budget) else ""
        each.add_argument("--out", type=Path, required=True, help=f"folder for the report{going_on}")
        each.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")
    equality.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    equality.add_argument("--dtype", default="float32", choices=FORMATS)
    add_prompt_file(equality, 2)
    equality.add_argument("--new-tokens", type=int, default=96, help="tokens a reply (default 96)")
    law = studies.add_parser("law", help="the rules of verification and selection beside numbers of case files")
    law.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON with cases, their kinds told by keys")
    passes = studies.add_parser(
        "pass", help="a pass by tokens, sessions and format, beside a bare transformers forward"
    )
    peers = studies.add_parser("peers", help="our decoding beside that of transformers and llama.cpp")
    threads = studies.add_parser("threads", help="compute threads of target and drafter on one machine")
    for each in (law, passes, peers, threads):
        going_on = GOING_ON if each is peers else ""
        each.add_argument("--out", type=Path, help=f"folder for the report{going_on} (default: none is written)")
        each.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")
    add_speed(speed)
    add_pass(passes)
    add_peers(peers)
    add_threads(threads)
    add_selection(selection)
    add_nucleus(nucleus)
    add_overlap(overlap)
    add_drafters(drafters)
    add_budget(budget)
    add_quality(dtypes)
    overhead.add_argument("--rounds", type=int, default=2000, help="tokens of the stream (default 2000)")


def run(args: argparse.Namespace) -> int:
    """Runs the study; 1 if a bar that it states is missed."""
    if args.out is not None:
        check_out(args.out)
    console = Console(stderr=True)
    try:
        with console.status(f"{args.study}: starting") as status:
            report = _STUDIES[args.study](args, lambda stage: status.update(f"{args.study}: {stage}"))
    except KeyboardInterrupt:
        kept = None if args.out is None else args.out / "parts" / args.study
        if kept is not None and kept.is_dir():
            print(f"study {args.study} broken off; the same command goes on from {kept}", file=sys.stderr)
        raise
    if args.out is not None:
        report.write(args.out)
    report.show(args.json)
    return 0 if report.passed else 1


def _equality(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    from paceline.prompt_file import load_prompts
    from paceline.study.equality import EqualitySettings, study_equality

    prompts = load_prompts(args.prompts, args.per_category)
    return asyncio.run(
        study_equality(EqualitySettings(args.model, prompts, args.dtype, new_tokens=args.new_tokens), progress)
    )


def _overhead(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    from paceline.study.overhead import study_overhead

    return asyncio.run(study_overhead(args.rounds, progress))


def _law(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    from paceline.study.law import run_law

    return run_law(args, progress)


_STUDIES: dict[str, Callable[[argparse.Namespace, Callable[[str], None]], Report]] = {
    "pass": run_pass,
    "peers": run_peers,
    "threads": run_threads,
    "equality": _equality,
    "speed": run_speed,
    "overhead": _overhead,
    "law": _law,
    "selection": run_selection,
    "nucleus": run_nucleus,
    "overlap": run_overlap,
    "drafters": run_drafters,
    "budget": run_budget,
    "dtypes": run_quality,
}
