"""`paceline study overlap`: what overlapping the row pass with drafting gives, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.drafter.model import ModelProposer
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import TextStore
from paceline.figures import Curve, Panel, draw
from paceline.prompt_file import Prompt
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.study.loaded import load_drafter, load_target
from paceline.study.overlap import VARIANTS, Pair, Variant, Work, measure
from paceline.study.parts import Parts
from paceline.study.report import Report
from paceline.study.slow_model import SlowModel, tables

PROMPT_TOKENS = 256
DEPTH = 4  # levels of a model drafter's tree


@dataclass(frozen=True, slots=True)
class OverlapSettings:
    """What to measure."""

    rtts_ms: Sequence[float] = (0.0, 2.0, 5.0, 10.0)
    pass_ms: float = 25.0  # of the simulated target, whatever the size: a 70B-class model on GPUs
    level_ms: float = 4.0  # of the simulated drafter, a level of its tree: a 1B-class model
    likeness: float = 0.6  # of the simulated drafter to its target
    vocab: int = 32
    tokens: int = 240  # a simulated reply
    new_tokens: int = 48  # a real reply
    budget: int = 8
    temperature: float = 1.0
    seed: int = 7
    threads: int = 2


def study_overlap(
    settings: OverlapSettings,
    model: str,
    layers: Sequence[int],
    prompts: Sequence[Prompt],
    out: Path,
    progress: Callable[[str], None],
) -> Report:
    """Simulated latencies under the real engines and wire, then real compute on this machine."""
    torch.set_num_threads(settings.threads)
    parts = Parts(out, "overlap", {**asdict(settings), "model": model, "layers": list(layers), "prompts": len(prompts)})
    rows = [row for rtt in settings.rtts_ms for row in _with_bars(_simulated(settings, rtt, parts, progress), settings)]
    rows += _real(settings, model, layers, prompts, parts, progress)
    draw(_panels(rows, settings), 3, out, "overlap")
    return Report(
        "overlap",
        {**asdict(settings), "model": model, "layers": list(layers), "prompts": len(prompts)},
        rows,
        notes=[
            f"simulated: passes of {settings.pass_ms:g} ms, {settings.level_ms:g} ms a level of the tree, slept;"
            " engines, gRPC and the delayed wire are real, the models are tables",
            "bar: the longer of drafting (wire included) and row pass, plus the verifying pass, plus what waiting for a"
            " tree exposed beyond that; ratio: round over bar",
            "real: target and drafter share the cores of this machine, so that overlapping takes from either",
        ],
    )


def _simulated(settings: OverlapSettings, rtt_ms: float, parts: Parts, progress: Callable[[str], None]) -> list[Any]:
    target, drafter = tables(settings.vocab, settings.likeness, settings.seed)
    tokenizer = ToyTokenizer.numbered(settings.vocab)
    work = Work([[1, 2, 3]], settings.tokens, settings.budget, settings.temperature)

    def cell(variant: Variant) -> dict[str, Any]:
        progress(f"simulated, {rtt_ms:g} ms round trip: {variant.name}")
        slow = SlowModel(drafter, settings.level_ms / 1e3)
        proposer = _model_proposer(slow, tokenizer.fingerprint)
        pair = Pair(SlowModel(target, settings.pass_ms / 1e3), tokenizer, proposer)
        return {"pair": "simulated", **asyncio.run(measure(pair, variant, work, rtt_ms / 1e3))}

    return [parts.made(f"simulated-{rtt_ms:g}-{variant.name}", lambda v=variant: cell(v)) for variant in VARIANTS]  # type: ignore[misc]


def _real(
    settings: OverlapSettings,
    model: str,
    layers: Sequence[int],
    prompts: Sequence[Prompt],
    parts: Parts,
    progress: Callable[[str], None],
) -> list[Any]:
    progress("loading the models")
    target = load_target(model, 4096)
    drafts = load_drafter(target, layers, 4096)
    tokens = [target.prompt_tokens(prompt, PROMPT_TOKENS) for prompt in prompts]
    work = Work(tokens, settings.new_tokens, settings.budget, 0.0)

    def cell(name: str, variant: Variant) -> dict[str, Any]:
        progress(f"real, {name}: {variant.name}")
        suffix = SuffixProposer(TextStore(0), 8, 0.01)
        proposer = suffix if name == "suffix" else _model_proposer(drafts, target.tokenizer.fingerprint)
        pair = Pair(target.runner, target.tokenizer, proposer)
        return {"pair": f"real, {name}", **asyncio.run(measure(pair, variant, work, 0.0))}

    found = []
    for name in ("suffix", f"{len(layers)} layers"):
        cells = [
            parts.made(f"real-{name}-{variant.name}", lambda n=name, v=variant: cell(n, v))  # type: ignore[misc]
            for variant in VARIANTS
        ]
        row_ms = (target.runner.costs.seconds(1) or 0.0) * 1e3
        found += [_barred(each, cells[0]["draft_ms"], row_ms) for each in cells]
    return found


def _model_proposer(runner: Any, fingerprint: str) -> ModelProposer:
    return ModelProposer(runner, fingerprint, max_depth=DEPTH, width=4, step_tokens=64, min_path_prob=0.0)


def _with_bars(rows: list[Any], settings: OverlapSettings) -> list[Any]:
    return [_barred(row, rows[0]["draft_ms"], settings.pass_ms) for row in rows]


def _barred(row: dict[str, Any], draft_ms: float, row_ms: float) -> dict[str, Any]:
    """Adds the time a round should take by THEORY 5, given what `draft` measured of drafting alone."""
    overlapped = row["chosen"] != "draft"
    first = max(draft_ms, row_ms) if overlapped else draft_ms
    # The row pass of `rerank` emits nothing and leaves no record: it is no waiting.
    exposed = row["exposed_ms"] - (row_ms if row["chosen"] == "rerank" else 0.0)
    beyond = max(0.0, exposed - max(0.0, draft_ms - (row_ms if overlapped else 0.0)))
    bar = first + row["verify_ms"] + beyond
    return {**row, "exposed_ms": exposed, "bar_ms": bar, "ratio": row["round_ms"] / bar}


def _panels(rows: Sequence[dict[str, Any]], settings: OverlapSettings) -> list[Panel]:
    simulated = [row for row in rows if row["pair"] == "simulated"]
    panels = []
    for key, label in (("round_ms", "ms a round"), ("tokens_per_s", "tokens/s"), ("busy_share", "target busy")):
        curves = {
            variant.name: Curve(
                list(settings.rtts_ms), [row[key] for row in simulated if row["variant"] == variant.name]
            )
            for variant in VARIANTS
        }
        panels.append(Panel(label, "round trip, ms", label, curves))
    return panels
