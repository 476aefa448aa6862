"""The selection study: every pair of targets, drafters and temperatures, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.figures import draw
from paceline.prompt_file import Prompt
from paceline.runtime.runner import ModelRunner
from paceline.study.draft_source import DraftSource, ModelSource, SuffixSource
from paceline.study.loaded import kept_costs, load_drafter, load_target
from paceline.study.parts import Parts, Progress
from paceline.study.report import Report
from paceline.study.selection import RULES, Pair, SelectionSettings, Sources, replies_of
from paceline.study.selection_report import PairSums, pair_rows, panels

KV_TOKENS = 24576
NOTES = (
    "expected_accepted: the sum over nodes of the target's probability of their path, exact given its rows; mean "
    "over contexts, 95 % interval over prompts (jackknife)",
    "draw_first: the drawn token counts as one node, one level and one accepted token; the three most probable ones "
    "are taken one by one (enumerated: their mean mass), and one drawn at random stands for the rest",
    "retain: at contexts whose round before, begun one token earlier, kept the row; weighted by the chance that its "
    "draw fell outside the tree. over_draft compares with draft at the same contexts",
    "tokens_per_round: rounds replayed along the recorded replies, where a retained row costs a token; tokens_per_pass "
    "counts row passes",
    "round_ms, speed_over_draft: a model from measured pass and draft times of this machine, the drafter beside the "
    "target and the wire free; draw_first as if drafting could begin before the draw is known",
    "retain and rerank choose among three times the budget",
)


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """A target and the layers of it that make its model drafter; no layers, no model drafter."""

    model: str
    layers: Sequence[int] = ()


def study_selection(
    targets: Sequence[TargetChoice],
    prompts: Sequence[Prompt],
    settings: SelectionSettings,
    out: Path,
    progress: Progress,
    threads: int = 2,
) -> Report:
    """Measures every pair; finished prompts of an earlier run into `out` with the same settings are not done again."""
    torch.set_num_threads(threads)
    rows: list[dict[str, Any]] = []
    for choice in targets:
        for pair in _pairs(choice, prompts, settings, out, progress):
            rows += pair_rows(pair, settings.budgets, RULES)
    draw(panels(rows, "expected_accepted", "expected accepted", "budget", "budget"), 3, out, "selection")
    draw(panels(rows, "expected_accepted", "expected accepted", "mean_nodes", "nodes"), 3, out, "selection_size")
    draw(panels(rows, "tokens_per_round", "tokens a round", "budget", "budget"), 3, out, "selection_rounds")
    shown = {"targets": [asdict(each) for each in targets], "prompts": len(prompts), **asdict(settings)}
    return Report("selection", shown, rows, NOTES)


def _pairs(
    choice: TargetChoice, prompts: Sequence[Prompt], settings: SelectionSettings, out: Path, progress: Progress
) -> list[PairSums]:
    progress(f"loading {choice.model}")
    target = load_target(choice.model, KV_TOKENS)
    tokens = [target.prompt_tokens(prompt, settings.prompt_tokens) for prompt in prompts]
    depends = {**asdict(settings), "target": choice.model, "dtype": target.runner.info.dtype, "prompts": tokens}
    parts = Parts(out, "selection", depends)
    costs = kept_costs(parts, f"{choice.model}-costs", target.runner)
    replies = replies_of(target.runner, tokens, settings, parts, progress)
    found = []
    for drafter in ("suffix", *(["layers"] if choice.layers else [])):
        model = load_drafter(target, choice.layers, KV_TOKENS // 8) if drafter == "layers" else None
        name = "suffix" if model is None else f"{len(choice.layers)} of its layers"
        own = Parts(out, "selection", {**depends, "layers": list(choice.layers) if model else []})
        sources = _sources(target.runner, model, name, settings)
        for temperature in settings.temperatures:
            pair = Pair(target.runner, sources, settings, temperature)
            label = f"{choice.model}-{drafter}-{temperature:g}"
            sums: list[Mapping[str, Any]] = []
            for number, (prompt, reply) in enumerate(zip(tokens, replies[temperature], strict=True)):
                progress(f"{choice.model}, {name}, T {temperature:g}: prompt {number + 1} of {len(tokens)}")
                sums.append(
                    own.made(f"{label}-{number}", lambda: pair.measure(prompt, reply, number))  # noqa: B023
                )
            timed = own.made(f"{label}-draft-s", lambda: pair.draft_seconds(tokens[0], replies[temperature][0]))  # noqa: B023
            pair.close()
            draft_s = {int(size): seconds for size, seconds in timed.items()}
            found.append(PairSums(choice.model, name, temperature, sums, draft_s, costs))
    return found


def _sources(target: ModelRunner, model: ModelRunner | None, name: str, settings: SelectionSettings) -> Sources:
    def source(max_depth: int) -> DraftSource:
        if model is None:
            return SuffixSource(target.info.vocab_size, target.info.eos_token_ids, max_depth)
        return ModelSource(name, model, target.info.eos_token_ids, max_depth, settings.width)

    return Sources(source(settings.max_depth), source(settings.max_depth - 1))
