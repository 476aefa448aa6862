"""Tokens per second of the whole stack by draft budget, at several loads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from paceline.study.arrivals import Arrivals, in_common, of_decoding
from paceline.study.parts import Parts
from paceline.study.ratios import turned
from paceline.study.turns import Turns
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

    def keys(self, sessions: int) -> list[str]:
        """Keys of the parts in which its repeats are kept, in their order."""
        return [f"{sessions}-{repeat}" for repeat in range(self.repeats)]


@dataclass(frozen=True, slots=True)
class _Reply:
    arrivals: Arrivals  # of its decoding
    finish: Finish


def kept_turns(settings: BudgetSettings, parts: Parts) -> dict[int, Turns]:
    """By sessions, the turns of all repeats: what an earlier run has left, and what is yet to be measured."""
    return {sessions: Turns(parts, settings.keys(sessions)) for sessions in settings.sessions}


async def measure(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    settings: BudgetSettings,
    kept: Mapping[int, Turns],
    progress: Callable[[str], None],
) -> None:
    """Measures every turn that is missing: a cell for each budget by its name, the budgets in turning order."""
    for sessions, turns in kept.items():
        if turns.missing:
            progress(f"{sessions} sessions: warming up")
            for variant in (0, AUTO_BUDGET):
                await _batch(client, _chosen(prompts, sessions, settings.repeats), settings, variant)
        for repeat, key in enumerate(settings.keys(sessions)):
            told = partial(turns.told, f"{sessions} sessions: repeat {repeat + 1} of {settings.repeats}")
            chosen = _chosen(prompts, sessions, repeat)
            await turns.take(key, partial(_cells, client, chosen, settings, repeat, told, progress))


async def _cells(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    settings: BudgetSettings,
    repeat: int,
    told: Callable[[], str],
    progress: Callable[[str], None],
) -> dict[str, dict[str, float]]:
    cells = {}
    for variant in turned(settings.variants, repeat):
        progress(f"{told()}: budget {variant}")
        cells[str(variant)] = await _batch(client, prompts, settings, variant)
    return cells


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


async def _reply(
    client: AsyncClient, prompt: Sequence[int], settings: BudgetSettings, budget: Budget, seed: int
) -> _Reply:
    arrivals: Arrivals = []
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
            return _Reply(of_decoding(arrivals), event)
    raise RuntimeError("the stream ended without a finish")
