"""The drafter study's tables and curves, from its decoded cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.figures import Curve, Panel
from paceline.runtime.costs import PassCosts
from paceline.study.intervals import ratio_interval
from paceline.study.report import finite
from paceline.target.strength import INFINITE, STRENGTHS

ALL = "all"  # the category of the mean over prompts
Cell = Mapping[str, Any]  # as `DrafterBench.cell` gives it


def result_rows(
    proposer: str,
    budget: int,
    temperature: float,
    cell: Cell,
    agreement: Sequence[Sequence[int]],
    categories: Sequence[str],
    costs: PassCosts,
) -> list[dict[str, Any]]:
    """A row for all prompts and one for each category; `agreement` as `DrafterBench.agreement` gives it."""
    all_rounds = sum(each["rounds"] for each in cell["replies"])
    draft_s = float(cell["draft_s"]) / all_rounds
    rows = []
    for category in (ALL, *dict.fromkeys(categories)):
        mine = [number for number, each in enumerate(categories) if category in (ALL, each)]
        replies = [cell["replies"][number] for number in mine]
        tokens, rounds = ([float(each[key]) for each in replies] for key in ("tokens", "rounds"))
        per_round = ratio_interval(tokens, rounds)
        relative = _relative_cost([size for each in replies for size in each["sizes"]], costs)
        known, first, among = (sum(agreement[number][column] for number in mine) for column in range(3))
        one_s = costs.seconds(1)
        draft = math.nan if one_s is None else draft_s / one_s  # in passes of one token
        rows.append(
            finite(
                {
                    "proposer": proposer,
                    "budget": budget,
                    "temperature": temperature,
                    "category": category,
                    "tokens_per_round": per_round.mean,
                    "low": per_round.low,
                    "high": per_round.high,
                    "top1": first / known,
                    "top4": among / known,
                    "speedup": per_round.mean / (relative + draft),
                    "ceiling": per_round.mean / relative,
                    "prompts": len(mine),
                }
            )
        )
    return rows


def strength_row(proposer: str, temperature: float, strength: float, cell: Cell) -> dict[str, Any]:
    """Acceptance at one strength, over all prompts."""
    replies = cell["replies"]
    accepted, rounds = ([float(each[key]) for each in replies] for key in ("accepted", "rounds"))
    mean = ratio_interval(accepted, rounds)
    return finite(
        {
            "proposer": proposer,
            "temperature": temperature,
            "strength": shown_strength(strength),
            "accepted_per_round": mean.mean,
            "low": mean.low,
            "high": mean.high,
            "tokens_per_round": sum(each["tokens"] for each in replies) / sum(rounds),
        }
    )


def shown_strength(strength: float) -> float | str:
    """The strength as a report writes it: JSON has no infinity."""
    return "infinity" if strength >= INFINITE else strength


def budget_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Tokens a round by budget: a panel for each temperature, a curve for each drafter."""
    mean = [row for row in rows if row["category"] == ALL]
    return [
        Panel(
            f"temperature {temperature:g}",
            "nodes of a tree",
            "tokens a round",
            _curves([row for row in mean if row["temperature"] == temperature], "budget", "tokens_per_round"),
            log_x=True,
        )
        for temperature in dict.fromkeys(row["temperature"] for row in mean)
    ]


def strength_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Accepted tokens a round by strength; infinity stands where 10 is."""
    placed = [{**row, "at": 10.0 if row["strength"] == "infinity" else row["strength"]} for row in rows]
    return [
        Panel(
            f"temperature {temperature:g}",
            f"strength ({STRENGTHS[0]:g} to {STRENGTHS[-2]:g}, infinity at 10)",
            "accepted tokens a round",
            _curves([row for row in placed if row["temperature"] == temperature], "at", "accepted_per_round"),
            log_x=True,
        )
        for temperature in dict.fromkeys(row["temperature"] for row in placed)
    ]


def _curves(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, Curve]:
    found = {}
    for proposer in dict.fromkeys(row["proposer"] for row in rows):
        points = [row for row in rows if row["proposer"] == proposer]
        shown = all(row["low"] is not None for row in points)
        found[proposer] = Curve(
            [row[x] for row in points],
            [row[y] for row in points],
            [row["low"] for row in points] if shown else (),
            [row["high"] for row in points] if shown else (),
        )
    return found


def _relative_cost(sizes: Sequence[int], costs: PassCosts) -> float:
    """The mean pass of these rounds over a pass of one token; NaN where passes are not measured."""
    one = costs.seconds(1)
    if one is None or not sizes:
        return math.nan
    return sum((costs.seconds(1 + size) or math.nan) for size in sizes) / len(sizes) / one
