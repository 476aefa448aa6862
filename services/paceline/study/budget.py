"""Tokens per second of the whole stack by draft budget, at several loads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.study.parts import Parts
from paceline.study.ratios import turned
from paceline_client.client import AsyncClient
from paceline_client.replies import Delta, Finish
from paceline_client.request import AUTO_BUDGET, Tokens

Budget = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What to measure. Of every repeat each budget decodes the same prompts."""

    sessions: Sequence[int] = (1, 4, 16)  # replies decoded at once
    budgets: Sequence[int] = (0, 2, 4, 8, 16, 32)  # beside auto
    new_tokens: int = 64  # of a reply
    repeats: int = 5
    prompt_tokens: int = 192
    temperature: float = 0.0

    @property
    def variants(self) -> list[Budget]:
        """Budgets in the order of a report."""
        return [*self.budgets, AUTO_BUDGET]


@dataclass(frozen=True, slots=True)
class _Reply:
    """Arrivals of one reply."""

    arrivals: Sequence[tuple[float, int]]  # seconds, tokens that came then
    finish: Finish


def kept_cells(settings: BudgetSettings, parts: Parts) -> dict[int, list[Mapping[str, Any] | None]]:
    """What an earlier run has left, by sessions; None for a repeat that is yet to be measured."""
    return {
        sessions: [parts.get(f"{sessions}-{repeat}") for repeat in range(settings.repeats)]
        for sessions in settings.sessions
    }


async def measure(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    settings: BudgetSettings,
    parts: Parts,
    progress: Callable[[str], None],
) -> dict[int, list[Mapping[str, Any]]]:
    """By sessions, for each repeat: a cell for each budget by its name, the budgets in turning order."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for sessions, kept in kept_cells(settings, parts).items():
        if not all(kept):
            progress(f"{sessions} sessions: warming up")
            for variant in (0, AUTO_BUDGET):
                await _batch(client, _chosen(prompts, sessions, settings.repeats), settings, variant)
        for repeat, part in enumerate(kept):
            if part is None:
                progress(f"{sessions} sessions: repeat {repeat + 1} of {settings.repeats}")
                chosen = _chosen(prompts, sessions, repeat)
                kept[repeat] = {
                    str(variant): await _batch(client, chosen, settings, variant)
                    for variant in turned(settings.variants, repeat)
                }
                parts.put(f"{sessions}-{repeat}", kept[repeat])
        found[sessions] = [part for part in kept if part is not None]
    return found


def _chosen(prompts: Sequence[Sequence[int]], sessions: int, repeat: int) -> list[Sequence[int]]:
    return [prompts[(repeat * sessions + number) % len(prompts)] for number in range(sessions)]


async def _batch(
    client: AsyncClient, prompts: Sequence[Sequence[int]], settings: BudgetSettings, budget: Budget
) -> dict[str, float]:
    """Replies to all prompts at once, and what came while all of them were being decoded."""
    replies = await asyncio.gather(
        *(_reply(client, prompt, settings, budget, seed) for seed, prompt in enumerate(prompts))
    )
    tokens, seconds = in_common([reply.arrivals for reply in replies])
    stats = [reply.finish.speculation for reply in replies]
    rounds = sum(each.rounds for each in stats)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "rounds": rounds,
        "emitted": sum(reply.finish.usage.completion_tokens for reply in replies),
        "drafted": sum(each.drafted for each in stats),
        "at_zero": sum(each.budgets.get(0, 0) for each in stats) if budget == AUTO_BUDGET else rounds * (budget == 0),
    }


def in_common(arrivals: Sequence[Sequence[tuple[float, int]]]) -> tuple[int, float]:
    """Tokens, and seconds, from the last reply's first arrival to the first reply's last one.

    Args:
        arrivals: of each reply, (seconds, tokens) in order.
    """
    start = max(each[0][0] for each in arrivals)
    end = min(each[-1][0] for each in arrivals)
    return sum(count for each in arrivals for at, count in each if start < at <= end), end - start


async def _reply(
    client: AsyncClient, prompt: Sequence[int], settings: BudgetSettings, budget: Budget, seed: int
) -> _Reply:
    arrivals: list[tuple[float, int]] = []
    async for event in client.generate(
        Tokens(prompt),
        max_tokens=settings.new_tokens,
        temperature=settings.temperature,
        seed=seed,
        budget=budget,
        ignore_eos=True,
        learn=False,  # the prompts come again
    ):
        if isinstance(event, Delta):
            arrivals.append((time.perf_counter(), len(event.token_ids)))
        else:
            return _Reply(arrivals, event)
    raise RuntimeError("the stream ended without a finish")
