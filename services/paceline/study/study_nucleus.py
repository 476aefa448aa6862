"""The nucleus study: every drafter, temperature and mass, part by part; limits; and deviation by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.figures import Curve, Panel, draw
from paceline.prompt_file import Prompt
from paceline.speculation.modes import Proposal
from paceline.study.deviation import DeviationSettings, deviation_rows, one_step_error
from paceline.study.loaded import kept_costs, load_drafter, load_target
from paceline.study.nucleus import Bench, Drafter, NucleusSettings, Texts
from paceline.study.nucleus_report import Series, limit_row, panels, series_rows
from paceline.study.parts import Parts, Progress
from paceline.study.report import Report
from paceline.study.tasks import tasks

KV_TOKENS = 24576
LIMITED = 1.0  # temperature of the cells with limits
DEFAULT_TABLES = DeviationSettings()
NOTES = (
    "tokens_per_pass: speedup over plain decoding counted in target passes (plain is 1); over_exact: the same over the "
    "exact rule (mass 0), the same prompts and seeds; 95 % intervals over prompts (jackknife)",
    "relaxed_share: tokens that only the nucleus rule kept; spent: the expected number of those, whose mean bounds the "
    "total variation of a reply's law",
    "log_prob: mean log-probability, in nats, of a reply's tokens under the target itself at temperature 1; it "
    "measures how typical the text is for the target, not how good it is",
    "task_score: share of built-in tasks (copying, lists, extraction, yes or no, digits) whose answer is in the reply; "
    "unchanged: replies that are the exact rule's, token by token",
    "cost_speed: modelled from measured pass costs and draft times of this machine, one session alone, the drafter "
    "before the target; the drafter made of the target's layers costs most of a target pass, so it cannot pay",
    "at temperature 0 sampled proposals are refused, and the nucleus is taken at temperature 1",
)


def study_nucleus(
    model: str,
    layers: Sequence[int],
    prompts: Sequence[Prompt],
    settings: NucleusSettings,
    out: Path,
    progress: Progress,
    threads: int = 2,
    tables: DeviationSettings = DEFAULT_TABLES,
) -> Report:
    """Decodes every cell; finished ones of an earlier run into `out` with the same settings are not done again."""
    torch.set_num_threads(threads)
    progress(f"loading {model}")
    target = load_target(model, KV_TOKENS)
    chosen = tasks(settings.tasks_per_kind, settings.seed)
    texts = Texts(
        [target.prompt_tokens(prompt, settings.prompt_tokens) for prompt in prompts],
        chosen,
        [target.prompt_tokens(Prompt("", task.kind, task.prompt), settings.prompt_tokens) for task in chosen],
        target.tokenizer,
    )
    shown = {"target": model, "layers": list(layers), "dtype": target.runner.info.dtype, **asdict(settings)}
    parts = Parts(out, "nucleus", {**shown, "prompts": texts.prompts, "tasks": [asdict(each) for each in chosen]})
    costs = kept_costs(parts, "costs", target.runner)
    truncated = load_drafter(target, layers, KV_TOKENS)
    kinds = [
        Drafter(name, proposal, runner)
        for name, runner in (("suffix", None), (f"{len(layers)} of its layers", truncated))
        for proposal in (Proposal.RANKED, Proposal.SAMPLED)
    ]
    bench = Bench(target.runner, texts, settings)
    rows: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    for drafter in kinds:
        label = f"{'suffix' if drafter.model is None else 'layers'}-{drafter.proposal}"
        for temperature in settings.temperatures:
            if temperature == 0 and drafter.proposal is Proposal.SAMPLED:
                continue
            cells = {}
            for mass in settings.masses:
                progress(f"{drafter.name}, {drafter.proposal}, T {temperature:g}, mass {mass:g}")
                cells[mass] = parts.made(
                    f"{label}-{temperature:g}-{mass:g}",
                    lambda: bench.cell(drafter, temperature, mass),  # noqa: B023
                )
            rows += series_rows(Series(model, drafter.name, drafter.proposal, temperature, cells), costs)
        if (drafter.model is None) != (drafter.proposal is Proposal.RANKED):
            continue  # one kind of ranked and one of sampled trees show the limits
        for number, rule in enumerate(settings.limits()):
            progress(f"{drafter.name}, {drafter.proposal}, limit {number + 1} of {len(settings.limits())}")
            cell = parts.made(f"{label}-limit-{number}", lambda: bench.limited(drafter, LIMITED, rule))  # noqa: B023
            limits.append(limit_row(drafter.name, drafter.proposal, LIMITED, cell))
    deviation = Parts(out, "nucleus", {"masses": list(settings.masses), **asdict(tables)}).made(
        "deviation",
        lambda: {
            "rows": deviation_rows(settings.masses, tables, progress),
            "one_step_error": one_step_error(settings.masses, tables),
        },
    )
    _draw(rows, deviation["rows"], out)
    for name, each in (("nucleus_limits", limits), ("nucleus_deviation", deviation["rows"])):
        Report(name, shown, each).write(out)
    holds = all(row["bound_holds"] for row in deviation["rows"]) and all(row["within"] for row in limits)
    extra = {"limits": limits, "deviation": deviation["rows"], "one_step_error": deviation["one_step_error"]}
    step = f"one candidate, one step: |TV - the drafter's excess in the nucleus| at most {extra['one_step_error']:.1e}"
    settled = {**shown, "prompts": len(prompts), "tasks": len(chosen)}
    return Report("nucleus", settled, rows, (*NOTES, step), passed=holds, extra=extra)


def _draw(rows: Sequence[dict[str, Any]], deviation: Sequence[dict[str, Any]], out: Path) -> None:
    draw(panels(rows, "tokens_per_pass", "tokens a target pass"), 3, out, "nucleus")
    draw(panels(rows, "log_prob", "log-probability a token, nats"), 3, out, "nucleus_log_prob")
    draw(panels(rows, "task_score", "tasks solved"), 3, out, "nucleus_tasks")
    draw(panels(rows, "spent_per_token", "deviation spent a token"), 3, out, "nucleus_spent")
    kinds = dict.fromkeys((row["tree"], row["max_deviation"]) for row in deviation)
    found = []
    for tree, limit in kinds:
        mine = [row for row in deviation if (row["tree"], row["max_deviation"]) == (tree, limit)]
        mass = [row["mass"] for row in mine]
        curves = {
            "total variation": Curve(mass, [row["tv_mean"] for row in mine]),
            "expected deviation spent": Curve(mass, [row["spent_mean"] for row in mine]),
        }
        found.append(Panel(f"{tree}\nlimit {limit}", "nucleus mass", "mean over tables", curves))
    draw(found, 4, out, "nucleus_deviation")
