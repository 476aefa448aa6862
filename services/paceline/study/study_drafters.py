"""The drafter study: every drafter, budget, temperature and strength, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.drafter.store_file import Tokenizer, read_store
from paceline.figures import draw
from paceline.prompt_file import Prompt
from paceline.runtime.costs import PassCosts
from paceline.runtime.drafter_runner import load_drafter_model
from paceline.runtime.models import ModelSpec
from paceline.runtime.runner import ModelRunner
from paceline.runtime.shipped import TEXTS
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import TextTokenizer
from paceline.study.drafters import (
    Drafter,
    DrafterBench,
    DrafterSettings,
    FusedDrafter,
    ModelDrafter,
    SuffixDrafter,
    serve,
)
from paceline.study.drafters_report import budget_panels, result_rows, shown_strength, strength_panels, strength_row
from paceline.study.loaded import DTYPE, Target, kept_costs, load_drafter, load_target
from paceline.study.parts import Parts, Progress
from paceline.study.report import Report

KV_TOKENS = 24576
MEASURE_S = 20.0  # of passes by size, on a busy machine up to five times that
NOTES = (
    "tokens_per_round: decoded with the target's own verification, or, with replay, trees walked along plain replies, "
    "which gives the same rounds; ranked trees at temperature 0, coupled ones above; 95 % intervals over prompts",
    "top1, top4: positions of the greedy replies whose token is the drafter's first, or among its first four; the same "
    "whatever the budget and the temperature of a row",
    "speedup: not timed, but from measured pass costs and draft times of this machine, one session alone, the drafter "
    "before the target; ceiling: tokens a round over the relative cost of a verifying pass, drafting free",
    "the store has served replies at temperature 0.7 to served_prompts other prompts (0: to the measured ones)",
    "strengths: accepted tokens a round of coupled trees by strength; infinity is 1e6",
)


class PartRun:
    """Cells of the study, made or found."""

    def __init__(self, bench: DrafterBench, parts: Parts, settings: DrafterSettings, progress: Progress) -> None:
        """Takes them."""
        self._bench, self._parts, self._settings, self._progress = bench, parts, settings, progress
        self._made = 0

    def results(
        self, drafter: Drafter, label: str, categories: Sequence[str], costs: PassCosts
    ) -> list[dict[str, Any]]:
        """Rows by budget and temperature; `label` names the drafter in files."""
        replies = self._plain(0.0)
        self._progress(f"{drafter.name}: agreement")
        agreement = self._parts.made(f"{label}-agreement", lambda: self._bench.agreement(drafter, replies))
        rows = []
        for temperature in self._settings.temperatures:
            for budget in self._settings.budgets:
                cell = self._cell(drafter, label, budget, temperature, self._settings.strength)
                rows += result_rows(drafter.name, budget, temperature, cell, agreement, categories, costs)
        return rows

    def strengths(self, drafter: Drafter, label: str) -> list[dict[str, Any]]:
        """Rows by strength and temperature."""
        return [
            strength_row(
                drafter.name,
                temperature,
                strength,
                self._cell(drafter, label, self._settings.strength_budget, temperature, strength),
            )
            for temperature in self._settings.strength_temperatures
            for strength in self._settings.strengths
        ]

    def _plain(self, temperature: float) -> list[list[int]]:
        self._progress(f"plain replies, T {temperature:g}")
        found: list[list[int]] = self._parts.made(f"plain-{temperature:g}", lambda: self._bench.replies(temperature))
        self._bench.know(temperature, found)
        return found

    def _cell(self, drafter: Drafter, label: str, budget: int, temperature: float, strength: float) -> Any:
        if self._settings.replay:
            self._plain(temperature)
        at = f", strength {shown_strength(strength)}" if temperature else ""
        self._progress(f"{drafter.name}, budget {budget}, T {temperature:g}{at}")
        key = f"{label}-{budget}-{temperature:g}" + (f"-{shown_strength(strength)}" if temperature else "")
        return self._parts.made(key, lambda: self._bench.cell(drafter, budget, temperature, strength))


def drafter_report(
    target: ModelRunner,
    prompts: Sequence[Sequence[int]],
    categories: Sequence[str],
    drafters: Sequence[Drafter],
    costs: PassCosts,
    settings: DrafterSettings,
    shown: dict[str, Any],
    parts: Parts,
    out: Path,
    progress: Progress,
) -> Report:
    """All cells, as a report with plots in `out`.

    Args:
        target: the target.
        prompts: as it takes them.
        categories: of each prompt.
        drafters: what is measured; no name twice.
        costs: measured passes of the target.
        settings: what is decoded.
        shown: what the report says of all this.
        parts: where finished cells are.
        out: folder of the plots.
        progress: told what is done now.
    """
    run = PartRun(DrafterBench(target, prompts, settings), parts, settings, progress)
    rows: list[dict[str, Any]] = []
    strengths: list[dict[str, Any]] = []
    for number, drafter in enumerate(drafters):
        label = f"{number}-{''.join(each if each.isalnum() else '_' for each in drafter.name)}"
        rows += run.results(drafter, label, categories, costs)
        strengths += run.strengths(drafter, label)
    draw(budget_panels(rows), 2, out, "drafters")
    draw(strength_panels(strengths), 2, out, "drafters_strength")
    Report("drafters_strength", shown, strengths).write(out)
    return Report("drafters", shown, rows, NOTES, extra={"strengths": strengths})


def study_drafters(
    model: str,
    layers: Sequence[int],
    folders: dict[str, Path],
    prompts: Sequence[Prompt],
    others: Sequence[Prompt],
    served_tokens: int,
    settings: DrafterSettings,
    out: Path,
    progress: Progress,
    threads: int = 2,
) -> Report:
    """Decodes every cell; finished ones of an earlier run into `out` with the same settings are not done again.

    Args:
        model: the target.
        layers: of the target, which make a model drafter; none for no such drafter.
        folders: model drafters by name.
        prompts: what is measured.
        others: prompts whose replies the store has served before.
        served_tokens: how many tokens of them; 0 leaves the store out.
        settings: what is decoded.
        out: folder of parts and plots.
        progress: told what is done now.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    progress(f"loading {model}")
    target = load_target(model, KV_TOKENS, MEASURE_S)
    tokens = [target.prompt_tokens(prompt, settings.prompt_tokens) for prompt in prompts]
    before = [target.prompt_tokens(prompt, settings.prompt_tokens) for prompt in others] or tokens
    shown = {
        "target": model,
        "dtype": target.runner.info.dtype,
        "layers": list(layers),
        "folders": {name: str(folder) for name, folder in folders.items()},
        "served_tokens": served_tokens,
        "served_prompts": len(others),
        **asdict(settings),
    }
    parts = Parts(out, "drafters", {**shown, "prompts": tokens, "before": before})
    costs = kept_costs(parts, "costs", target.runner)
    drafters: list[Drafter] = [SuffixDrafter("suffix, own text")]
    if served_tokens:
        texts = parts.made("served", _server(target, before, served_tokens, settings.seed, progress))
        drafters.append(SuffixDrafter(f"suffix, {served_tokens} tokens served", texts))
    models: dict[str, ModelRunner] = {}
    if layers:
        models[f"{len(layers)} of its layers"] = load_drafter(target, layers, KV_TOKENS, MEASURE_S)
    for name, folder in folders.items():
        spec = ModelSpec(str(folder), name=name, dtype=DTYPE)
        models[name] = load_drafter_model(spec, KV_TOKENS, model, default_store().resolve).runner
    for name, runner in models.items():
        drafters.append(ModelDrafter(name, runner, settings.width))
        drafters.append(FusedDrafter(f"fused, own text and {name}", runner, settings.width))
        if served_tokens:
            label = f"fused, {served_tokens} tokens served and {name}"
            drafters.append(FusedDrafter(label, runner, settings.width, texts))
        if name in folders and (folders[name] / TEXTS).is_file():
            given = _texts_of(folders[name] / TEXTS, model, target.tokenizer)
            drafters.append(SuffixDrafter(f"suffix, texts of {name}", given))
            drafters.append(FusedDrafter(f"fused, texts of {name}", runner, settings.width, given))
    pass_ms = {str(size): each * 1e3 for size, each in costs.seconds_by_size.items()}
    shown = {**shown, "prompts": len(prompts), "pass_ms": pass_ms}
    categories = [prompt.category for prompt in prompts]
    return drafter_report(target.runner, tokens, categories, drafters, costs, settings, shown, parts, out, progress)


def _texts_of(path: Path, model: str, tokenizer: TextTokenizer) -> list[list[int]]:
    texts = read_store(path, Tokenizer(model, tokenizer.fingerprint, tokenizer.vocab_size), TEXTS)
    return [each.tolist() for each in np.split(texts.tokens, np.cumsum(texts.lengths)[:-1])]


def _server(
    target: Target, prompts: Sequence[list[int]], tokens: int, seed: int, progress: Progress
) -> Callable[[], list[list[int]]]:
    def made() -> list[list[int]]:
        told = lambda served: progress(f"serving before: {served} of {tokens} tokens")  # noqa: E731
        return serve(target.runner, prompts, tokens, seed, told)

    return made
