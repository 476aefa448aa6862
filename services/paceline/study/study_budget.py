"""`paceline study budget`: the budget that is chosen beside fixed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.drafter.config import DrafterConfig
from paceline.figures import Curve, Panel, draw
from paceline.prompt_file import Prompt, chat_tokens
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import load_tokenizer
from paceline.study.budget import BudgetSettings, kept_turns, measure
from paceline.study.intervals import ratio_interval
from paceline.study.loaded import check_reply
from paceline.study.parts import Parts
from paceline.study.ratios import ratio_of
from paceline.study.report import Report, finite, timed_on
from paceline.study.stack import StackConfig, running
from paceline.study.turns import runs_note, tell_kept
from paceline.target.config import TargetConfig
from paceline_client.client import AsyncClient
from paceline_client.request import AUTO_BUDGET

BAR = 0.9  # of the best fixed budget's tokens per second, at every load
Cells = Sequence[Mapping[str, Any]]  # one a repeat, as `measure` gives them


def study_budget(
    model: str,
    dtype: str,
    drafter: DrafterConfig,
    prompts: Sequence[Prompt],
    settings: BudgetSettings,
    out: Path,
    threads: int,
    progress: Callable[[str], None],
) -> Report:
    """Every budget decodes the same prompts in every repeat, in turning order, through gateway, target and drafter."""
    torch.set_num_threads(threads)
    told = {
        "model": model,
        "dtype": dtype,
        "drafter": drafter.model or drafter.proposer,
        "prompts": len(prompts),
        "threads": threads,
        **asdict(settings),
    }
    texts = [each.text for each in prompts]
    depends = {**told, "drafter": drafter.model_dump(), "texts": texts, "machine": timed_on()}
    del depends["repeats"]  # more repeats go on from fewer ones
    parts = Parts(out, "budget", depends)
    keys = [key for sessions in settings.sessions for key in settings.keys(sessions)]
    tell_kept("budget", parts, keys)
    folder = default_store().resolve(model)
    tokenizer = load_tokenizer(folder)
    tokens = [chat_tokens(tokenizer, prompt.text, settings.prompt_tokens) for prompt in prompts]
    check_reply("--new-tokens", settings.new_tokens, model, folder, tokens)
    target = TargetConfig(model=str(folder), dtype=dtype, max_sessions=max(32, *settings.sessions))

    async def run() -> None:
        progress("starting the stack")
        stack = StackConfig(target, drafter, target_threads=threads)
        async with running(stack) as services, AsyncClient(services.address) as client:
            await measure(client, tokens, settings, kept, progress)

    kept = kept_turns(settings, parts)
    if any(turns.missing for turns in kept.values()):
        asyncio.run(run())
    cells = {sessions: turns.all() for sessions, turns in kept.items()}
    runs = parts.runs(keys)
    rows = [row for sessions, found in cells.items() for row in budget_rows(sessions, found, settings)]
    auto = [auto_row(sessions, found, settings) for sessions, found in cells.items()]
    draw([_panel(rows, sessions) for sessions in cells], 3, out, "budget")
    return Report(
        "budget",
        told,
        rows,
        notes=[
            "tokens_per_s: of all sessions, while all of them are being decoded; low and high bound 95 % over repeats",
            "the drafter learns nothing from these replies, since the prompts come again in every repeat",
            *(
                f"{each['sessions']} sessions: auto gives {each['ratio_to_best']:.3f} ({each['low']:.3f} to"
                f" {each['high']:.3f}) of budget {each['best']}, the best of the fixed ones in the mean"
                for each in auto
            ),
            *runs_note(runs),
            f"bar: auto gives at least {BAR:g} of the best fixed budget's tokens per second at every load",
        ],
        passed=all(each["ratio_to_best"] >= BAR for each in auto),
        extra={"auto": auto, "runs": runs},
    )


def budget_rows(sessions: int, cells: Cells, settings: BudgetSettings) -> list[dict[str, Any]]:
    """A row for each budget at one load."""
    rows = []
    for variant in settings.variants:
        mine = [cell[str(variant)] for cell in cells]
        rate = ratio_interval([each["tokens"] for each in mine], [each["seconds"] for each in mine])
        rounds = sum(each["rounds"] for each in mine)
        rows.append(
            finite(
                {
                    "sessions": sessions,
                    "budget": variant,
                    "tokens_per_s": rate.mean,
                    "low": rate.low,
                    "high": rate.high,
                    "tokens_per_round": sum(each["emitted"] for each in mine) / rounds,
                    "nodes_per_round": sum(each["drafted"] for each in mine) / rounds,
                    "at_zero": sum(each["at_zero"] for each in mine) / rounds,
                }
            )
        )
    return rows


def auto_row(sessions: int, cells: Cells, settings: BudgetSettings) -> dict[str, Any]:
    """The chosen budget over the best fixed one at one load, in pairs by repeat."""

    def per_token_s(variant: object) -> list[float]:
        return [cell[str(variant)]["seconds"] / cell[str(variant)]["tokens"] for cell in cells]

    def mean_rate(variant: int) -> float:
        mine = [cell[str(variant)] for cell in cells]
        return float(sum(each["tokens"] for each in mine) / sum(each["seconds"] for each in mine))

    best = max(settings.budgets, key=mean_rate)
    ratio = ratio_of(per_token_s(AUTO_BUDGET), per_token_s(best))
    return {
        "sessions": sessions,
        "ratio_to_best": ratio.mean,
        "low": ratio.low,
        "high": ratio.high,
        "best": best,
        "repeats": ratio.pairs,
    }


def _panel(rows: Sequence[Mapping[str, Any]], sessions: int) -> Panel:
    mine = [row for row in rows if row["sessions"] == sessions]
    fixed = [row for row in mine if row["budget"] != AUTO_BUDGET]
    (auto,) = (row for row in mine if row["budget"] == AUTO_BUDGET)
    places = [max(row["budget"], 1) for row in fixed]
    level = {key: [auto[key]] * len(places) for key in ("tokens_per_s", "low", "high")}
    return Panel(
        f"{sessions} sessions",
        "draft nodes a round (0 at 1)",
        "tokens/s",
        {
            "fixed": Curve(places, *([row[key] for row in fixed] for key in ("tokens_per_s", "low", "high"))),
            "auto": Curve(places, level["tokens_per_s"], level["low"], level["high"]),
        },
        log_x=True,
    )
