"""Rows, ratios, bars and plot of the study that compares our decoding with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.study.formats import LOW_BIT
from paceline.study.peers import System, Times
from paceline.study.peers_equal import Equal
from paceline.study.peers_llama import LLAMA
from paceline.study.peers_own import DRAFTED, PLAIN
from paceline.study.peers_transformers import GENERATE

BASES = {"own_float32": PLAIN, "transformers": GENERATE, "llama_cpp": LLAMA}  # what each system is compared with
LEAST = {"llama_cpp": 1.0, "transformers": 6.0}  # of drafted decoding with low-bit weights
LEAST_TOGETHER = 2.5  # tokens a second of all sessions over those of one alone


@dataclass(frozen=True, slots=True)
class Outcome:
    """A system with all that was measured of it."""

    system: System
    times: Times
    equal: Equal


def ratios(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Speed of every system over that of each base that was measured, with intervals."""
    found = []
    for base_name, name in BASES.items():
        base = next((each for each in outcomes if each.system.name == name and each.system.dtype not in LOW_BIT), None)
        for each in outcomes if base is not None else ():
            assert base is not None
            pair = each.times.over(base.times)
            if pair is not None and each is not base:
                ratio, over_prompts = pair
                found.append(
                    {
                        "system": each.system.name,
                        "dtype": each.system.dtype,
                        "over": base_name,
                        **ratio.row(over_prompts),
                    }
                )
    return found


def rows(outcomes: Sequence[Outcome], found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table."""
    table = []
    for each in outcomes:
        name, dtype, rate = each.system.name, each.system.dtype, each.times.rate()
        own = {ratio["over"]: ratio["ratio"] for ratio in found if (ratio["system"], ratio["dtype"]) == (name, dtype)}
        table.append(
            {
                "system": name,
                "dtype": dtype,
                "tokens_per_s": rate.mean,
                "low": rate.low,
                "high": rate.high,
                "ms_per_token": 1e3 / rate.mean,
                "equal_to_own_plain": each.equal.equal,
                "near_ties": each.equal.near_ties,
                "prompts": each.times.prompts,
                **{f"over_{base}": own.get(base) for base in BASES},
            }
        )
    return table


def judged(
    outcomes: Sequence[Outcome], found: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]]
) -> list[tuple[str, bool]]:
    """Every bar that was measured, in words, and whether it is met: the lower end of an interval counts."""
    bars = []
    for base, least in LEAST.items():
        chosen = [
            each for each in found if (each["system"], each["over"]) == (DRAFTED, base) and each["dtype"] in LOW_BIT
        ]
        bars += _best(chosen, f"drafted over {BASES[base]}", least)
    bars += _best(together, "sessions at once over one alone", LEAST_TOGETHER)
    for each in outcomes:
        if each.system.name == DRAFTED:
            faults = each.equal.faults or 0
            words = (
                f"bar: {each.system.dtype}, drafted replies that differ from plain ones and are no near-tie: {faults}"
            )
            bars.append((f"{words}, at most 0: {_met(not faults)}", not faults))
    return bars


def _best(chosen: Sequence[Mapping[str, Any]], words: str, least: float) -> list[tuple[str, bool]]:
    if not chosen:
        return []
    best = max(chosen, key=lambda each: each["low"])
    met = best["low"] >= least
    measured = f"{best['ratio']:.2f} ({best['low']:.2f} to {best['high']:.2f})"
    return [(f"bar: {words}, best {best['system']}, {best['dtype']}: {measured}, at least {least:g}: {_met(met)}", met)]


def _met(met: bool) -> str:
    return "met" if met else "missed"
