"""Rows of the study of speed, from its kept pairs of plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.runtime.costs import PassCosts
from paceline.study.ratios import Ratio, ratio_by_prompt
from paceline.study.speed_replies import Timed

PLAIN = "plain through the stack"
Pair = Mapping[str, Any]  # "ours" and "base": fields of a Timed, or of "base" alone the seconds a token


def plain_row(pairs: Sequence[Pair], prompts: int) -> dict[str, Any]:
    """Plain decoding beside a bare loop. Pair p is of prompt p % prompts."""
    ours_s, base_s = [Timed(**each["ours"]).per_token_s for each in pairs], [each["base"] for each in pairs]
    prompt_of = [pair % prompts for pair in range(len(pairs))]
    return _row(PLAIN, "bare cached loop", *ratio_by_prompt(ours_s, base_s, prompt_of), 1.0)


def drafted_rows(pairs: Sequence[Pair], categories: Sequence[str], costs: PassCosts, name: str) -> list[dict[str, Any]]:
    """Drafted decoding beside plain decoding: all prompts together, and each category.

    Args:
        pairs: pair p is of prompt p % prompts.
        categories: of the prompts.
        costs: measured passes of the target.
        name: of the drafter.
    """
    ours, base = ([Timed(**each[side]) for each in pairs] for side in ("ours", "base"))
    prompt_of = [pair % len(categories) for pair in range(len(pairs))]
    kinds = [categories[prompt] for prompt in prompt_of]
    rows = []
    for kind in (None, *dict.fromkeys(kinds)):
        chosen = [pair for pair in range(len(pairs)) if kind in (None, kinds[pair])]
        if len(chosen) < 2 or (kind is not None and len(set(kinds)) == 1):
            continue
        ratios = ratio_by_prompt(
            [ours[pair].per_token_s for pair in chosen],
            [base[pair].per_token_s for pair in chosen],
            [prompt_of[pair] for pair in chosen],
        )
        rounds = sum(ours[pair].rounds for pair in chosen)
        per_round = sum(ours[pair].tokens for pair in chosen) / rounds
        cost = _pass_cost(costs, 1 + sum(ours[pair].drafted for pair in chosen) / rounds)
        shown = name if kind is None else f"{name}: {kind}"
        rows.append(_row(shown, PLAIN, *ratios, per_round, per_round / cost))
    return rows


def _pass_cost(costs: PassCosts, tokens: float) -> float:
    """Seconds of a pass of that mean size over those of one token; 1 where passes are not measured."""
    below = int(tokens)
    one, lower, upper = costs.seconds(1), costs.seconds(below), costs.seconds(below + 1)
    if one is None or lower is None or upper is None:
        return 1.0
    return (lower + (tokens - below) * (upper - lower)) / one


def _row(
    ours: str, base: str, ratio: Ratio, over_prompts: Ratio | None, per_round: float, ceiling: float = 1.0
) -> dict[str, Any]:
    return {
        "ours": ours,
        "baseline": base,
        **ratio.row(over_prompts),
        "ours_ms": ratio.ours_s * 1e3,
        "base_ms": ratio.base_s * 1e3,
        "tokens_per_round": per_round,
        "ceiling": ceiling,
    }
