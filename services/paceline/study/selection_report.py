"""The selection study's table and curves, from the sums of its pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.figures import Curve, Panel
from paceline.runtime.costs import PassCosts
from paceline.speculation.modes import Selection
from paceline.study.intervals import difference_interval, ratio_interval
from paceline.study.replay import CANDIDATES, PASSES
from paceline.study.report import finite


@dataclass(frozen=True, slots=True)
class PairSums:
    """What a pair's prompts came to."""

    target: str
    drafter: str
    temperature: float
    prompts: Sequence[Mapping[str, Any]]  # as `Pair.measure` gives them
    draft_s: Mapping[int, float]  # seconds to draft a tree of a size
    costs: PassCosts  # of the target

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.target}, {self.drafter}, T {self.temperature:g}"


def pair_rows(pair: PairSums, budgets: Sequence[int], rules: Sequence[Selection]) -> list[dict[str, Any]]:
    """One row for each rule and budget."""
    counted = [each for each in pair.prompts if each["contexts"]]
    # Accepted by the drafter's own ranking against the mean size of its trees, to compare at equal size.
    sizes, ranked = [0.0], [0.0]
    for number in range(len(budgets)):
        weight, accepted, nodes, _ = _exact(counted, Selection.DRAFT, number).sum(axis=1)
        sizes.append(nodes / weight)
        ranked.append(accepted / weight)
    base_s = {}
    rows = []
    for rule in rules:
        for number, budget in enumerate(budgets):
            weight, accepted, nodes, by_draft = _exact(counted, rule, number)
            expected = ratio_interval(accepted, weight)
            gain = difference_interval(accepted, by_draft, weight)
            mean_nodes = float(nodes.sum() / weight.sum()) if weight.sum() else math.nan
            rounds = np.asarray([each["replay"][rule][number] for each in counted], dtype=np.float64).T
            emitted = ratio_interval(rounds[1], rounds[0])
            round_s = _round_s(pair, rule, budget, *(rounds[2:].sum(axis=1) / rounds[0].sum()).tolist())
            if rule is Selection.DRAFT:
                base_s[budget] = round_s / emitted.mean
            rows.append(
                finite(
                    {
                        "target": pair.target,
                        "drafter": pair.drafter,
                        "temperature": pair.temperature,
                        "rule": str(rule),
                        "budget": budget,
                        "expected_accepted": expected.mean,
                        "low": expected.low,
                        "high": expected.high,
                        "mean_nodes": mean_nodes,
                        "over_draft": gain.mean,
                        "over_draft_low": gain.low,
                        "over_draft_high": gain.high,
                        "over_draft_at_equal_size": expected.mean - float(np.interp(mean_nodes, sizes, ranked)),
                        "tokens_per_round": emitted.mean,
                        "tokens_per_round_low": emitted.low,
                        "tokens_per_round_high": emitted.high,
                        "tokens_per_pass": emitted.mean / PASSES[rule],
                        "rounds_with_kept_row": float(rounds[3].sum() / rounds[0].sum()),
                        "round_ms": round_s * 1e3,
                        "speed_over_draft": base_s[budget] / (round_s / emitted.mean),
                        "contexts": sum(each["contexts"] for each in counted),
                        "enumerated": sum(each["enumerated"] for each in counted)
                        / sum(each["contexts"] for each in counted),
                    }
                )
            )
    return rows


def _exact(counted: Sequence[Mapping[str, Any]], rule: Selection, number: int) -> np.ndarray:
    """[4, prompts]: weight, accepted, nodes and what `draft` accepts."""
    return np.asarray([each["exact"][rule][number] for each in counted], dtype=np.float64).T


def _round_s(pair: PairSums, rule: Selection, budget: int, nodes: float, kept: float) -> float:
    """Seconds of a round by measured times, the drafter beside the target on a machine of its own, the wire free.

    Args:
        pair: the times.
        rule: the rule.
        budget: most nodes.
        nodes: verified in the mean.
        kept: share of rounds with a retained row, which choose from a larger tree.
    """
    row_s = pair.costs.seconds(1)
    if row_s is None:
        return math.nan
    more = 1.0 if rule is Selection.RERANK else kept
    drafting = more * pair.draft_s[CANDIDATES * budget] + (1 - more) * pair.draft_s[budget]
    waiting = max(drafting, row_s) if PASSES[rule] == 2 else drafting
    tokens = nodes + (rule is not Selection.DRAW_FIRST)  # the last token of the context, or the one drawn first
    # The mean size and those beside it: passes are not monotone, and a token more is not a fraction of a pass.
    fewer, share = int(tokens), tokens - int(tokens)
    verifying = [pair.costs.seconds(max(size, 1)) or math.nan for size in (fewer, fewer + 1)]
    return waiting + (1 - share) * verifying[0] + share * verifying[1]


def panels(rows: Sequence[Mapping[str, Any]], y: str, y_label: str, x: str, x_label: str) -> list[Panel]:
    """A panel for each pair, a curve for each rule."""
    found = []
    for key in dict.fromkeys((row["target"], row["drafter"], row["temperature"]) for row in rows):
        mine = [row for row in rows if (row["target"], row["drafter"], row["temperature"]) == key]
        low, high = ("low", "high") if y == "expected_accepted" else (f"{y}_low", f"{y}_high")
        curves = {}
        for rule in dict.fromkeys(row["rule"] for row in mine):
            known = [row for row in mine if row["rule"] == rule and row[x] is not None]
            points = sorted(known, key=lambda row: row[x])
            if not points:
                continue
            shown = all(row.get(low) is not None for row in points)
            curves[rule] = Curve(
                [row[x] for row in points],
                [row[y] for row in points],
                [row[low] for row in points] if shown else (),
                [row[high] for row in points] if shown else (),
            )
        found.append(Panel(f"{key[0]}\n{key[1]}, T {key[2]:g}", x_label, y_label, curves, log_x=True))
    return found
