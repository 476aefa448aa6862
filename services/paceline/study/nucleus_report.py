"""The nucleus study's tables and curves, from its decoded cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.figures import Curve, Panel
from paceline.runtime.costs import PassCosts
from paceline.speculation.modes import Proposal
from paceline.study.intervals import Interval, jackknife, ratio_interval
from paceline.study.nucleus import verify_seconds
from paceline.study.report import finite


@dataclass(frozen=True, slots=True)
class Series:
    """The cells of one drafter at one temperature, by mass; mass 0 is among them."""

    target: str
    drafter: str
    proposal: Proposal
    temperature: float
    cells: Mapping[float, Mapping[str, Any]]  # as `Bench.cell` gives them


def series_rows(series: Series, costs: PassCosts) -> list[dict[str, Any]]:
    """One row for each mass."""
    exact = series.cells[0.0]
    exact_s = _seconds_per_token(exact, costs)
    plain_s = costs.seconds(1) or float("nan")
    rows = []
    for mass, cell in series.cells.items():
        replies = cell["replies"]
        tokens, rounds, accepted, relaxed, spent, log_prob = (
            [float(each) for each in column] for column in zip(*map(_counts, replies), strict=True)
        )
        per_pass = ratio_interval(tokens, rounds)
        against = _over(tokens, rounds, *zip(*((_counts(each)[:2]) for each in exact["replies"]), strict=True))
        likely = ratio_interval(log_prob, tokens)
        solved = [float(each) for each in cell["solved"]]
        score = ratio_interval(solved, [1.0] * len(solved))
        own_s = _seconds_per_token(cell, costs)
        rows.append(
            finite(
                {
                    "target": series.target,
                    "drafter": series.drafter,
                    "proposal": str(series.proposal),
                    "temperature": series.temperature,
                    "mass": mass,
                    "accepted_per_round": sum(accepted) / sum(rounds),
                    "tokens_per_pass": per_pass.mean,
                    "low": per_pass.low,
                    "high": per_pass.high,
                    "over_exact": against.mean,
                    "over_exact_low": against.low,
                    "over_exact_high": against.high,
                    "relaxed_share": sum(relaxed) / sum(tokens),
                    "spent_per_token": sum(spent) / sum(tokens),
                    "spent_per_reply": sum(spent) / len(spent),
                    "unchanged": float(
                        np.mean([a["tokens"] == b["tokens"] for a, b in zip(replies, exact["replies"], strict=True)])
                    ),
                    "log_prob": likely.mean,
                    "log_prob_low": likely.low,
                    "log_prob_high": likely.high,
                    "task_score": score.mean,
                    "task_score_low": score.low,
                    "task_score_high": score.high,
                    "cost_speed_over_plain": plain_s / own_s,
                    "cost_speed_over_exact": exact_s / own_s,
                }
            )
        )
    return rows


def limit_row(drafter: str, proposal: Proposal, temperature: float, cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell of `Bench.limited`."""
    replies, rule = cell["replies"], cell["rule"]
    tokens, rounds, _, relaxed, spent, _ = (np.asarray(each) for each in zip(*map(_counts, replies), strict=True))
    named = {key: value for key, value in rule.items() if key.startswith("max_") and value is not None}
    mean_spent, mean_relaxed = (ratio_interval(each.tolist(), [1.0] * len(replies)) for each in (spent, relaxed))
    return finite(
        {
            "drafter": drafter,
            "proposal": str(proposal),
            "temperature": temperature,
            "mass": rule["mass"],
            "limit": ", ".join(f"{key} {value:g}" for key, value in named.items()) or "none",
            "replies": len(replies),
            "spent_mean": mean_spent.mean,
            "spent_high": mean_spent.high,
            "spent_most": float(spent.max()),
            "spent_per_token_most": float((spent / tokens).max()),
            "relaxed_mean": mean_relaxed.mean,
            "relaxed_low": mean_relaxed.low,
            "relaxed_high": mean_relaxed.high,
            "relaxed_most": int(relaxed.max()),
            "withheld": sum(each["withheld"] for each in replies),
            "tokens_per_pass": float(tokens.sum() / rounds.sum()),
            "within": _within(named, spent, relaxed, tokens),
        }
    )


def _within(named: Mapping[str, float], spent: np.ndarray, relaxed: np.ndarray, tokens: np.ndarray) -> bool:
    """Whether every reply kept to the limit."""
    bounds = {
        "max_deviation": spent,
        "max_deviation_per_token": spent / tokens,
        "max_relaxations": relaxed,
    }
    return all(bool((bounds[key] <= value * (1 + 1e-9)).all()) for key, value in named.items())


def _counts(reply: Mapping[str, Any]) -> tuple[float, ...]:
    kept = ("rounds", "accepted", "relaxed", "spent", "log_prob")
    return (len(reply["tokens"]), *(reply[key] for key in kept))


def _over(
    tokens: Sequence[float], rounds: Sequence[float], exact_tokens: Sequence[float], exact_rounds: Sequence[float]
) -> Interval:
    """Tokens a pass over those of the exact rule, paired by prompt."""
    sums = np.asarray([tokens, rounds, exact_tokens, exact_rounds], dtype=np.float64)
    return jackknife(sums, lambda each: float(each[0] / each[1] / (each[2] / each[3])))


def _seconds_per_token(cell: Mapping[str, Any], costs: PassCosts) -> float:
    """One session alone, the drafter before the target: measured pass costs and draft times; NaN if one is missing."""
    tokens = sum(len(each["tokens"]) for each in cell["replies"])
    drafting = float(cell["draft_s"]) or math.nan  # 0: its passes were not timed
    return (verify_seconds(cell["replies"], costs.seconds) + drafting) / tokens


def panels(rows: Sequence[Mapping[str, Any]], y: str, y_label: str) -> list[Panel]:
    """A panel for each temperature, a curve for each drafter."""
    found = []
    low, high = ("low", "high") if y == "tokens_per_pass" else (f"{y}_low", f"{y}_high")
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        curves = {}
        for key in dict.fromkeys((row["drafter"], row["proposal"]) for row in rows):
            points = [
                row for row in rows if (row["drafter"], row["proposal"], row["temperature"]) == (*key, temperature)
            ]
            if points:
                shown = all(row.get(low) is not None for row in points)
                curves[", ".join(key)] = Curve(
                    [row["mass"] for row in points],
                    [row[y] for row in points],
                    [row[low] for row in points] if shown else (),
                    [row[high] for row in points] if shown else (),
                )
        found.append(Panel(f"temperature {temperature:g}", "nucleus mass", y_label, curves))
    return found
