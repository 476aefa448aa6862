"""Our own decoding, through gateway, target and drafter as processes, for the study that compares it with others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from paceline.drafter.config import DrafterConfig
from paceline.study.arrivals import Arrivals, in_common, of_decoding
from paceline.study.parts import Parts
from paceline.study.peers import Decoded, System
from paceline.study.ratios import Ratio, ratio_of
from paceline.study.stack import StackConfig, running
from paceline.study.turns import Turns
from paceline.target.config import TargetConfig
from paceline_client.client import AsyncClient
from paceline_client.replies import Delta
from paceline_client.request import Tokens

PLAIN, DRAFTED = "paceline plain", "paceline drafted"
ALONE = "alone"
TOGETHER = (ALONE, PLAIN, DRAFTED)  # what a batch of sessions at once compares


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The services."""

    model: str  # folder
    drafter: DrafterConfig
    new_tokens: int
    threads: int  # of each target
    drafter_threads: int
    at_once: int  # sessions that are decoded together


@dataclass(frozen=True, slots=True)
class Own:
    """A running stack in one format."""

    dtype: str
    client: AsyncClient
    settings: OwnSettings

    def systems(self) -> list[System]:
        """Plain and drafted decoding, one request at a time."""

        async def plain(prompt: Sequence[int]) -> Decoded:
            return Decoded.of(*await self._reply(prompt, draft=False))

        async def drafted(prompt: Sequence[int]) -> Decoded:
            return Decoded.of(*await self._reply(prompt, draft=True))

        return [System(PLAIN, self.dtype, plain), System(DRAFTED, self.dtype, drafted)]

    def together_keys(self, batches: int) -> list[str]:
        """Keys of the parts in which `together` keeps its batches, in their order."""
        return [f"together-{self.dtype}-{number}" for number in range(1, batches + 1)]

    async def together(
        self, prompts: Sequence[Sequence[int]], batches: int, parts: Parts, progress: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Throughput of `at_once` sessions over that of one session alone, plain and drafted; `batches` times.

        A batch is kept in `parts`, and not decoded if it is there.
        """
        keys = self.together_keys(batches)
        turns = Turns(parts, keys)
        sessions = f"{self.settings.at_once} sessions at once, {self.dtype}"
        if turns.missing:
            await self._together(prompts, 0, f"{sessions}: warming up", progress)
        for number, key in enumerate(keys, start=1):
            where = turns.told(f"{sessions}: batch {number} of {batches}")
            await turns.take(key, partial(self._together, prompts, number, where, progress))
        taken = {name: [part[name] for part in turns.all()] for name in TOGETHER}
        return [
            {
                "system": name,
                "dtype": self.dtype,
                "sessions": self.settings.at_once,
                **over_alone(taken[name], taken[ALONE]),
            }
            for name in (PLAIN, DRAFTED)
        ]

    async def _together(
        self, prompts: Sequence[Sequence[int]], number: int, where: str, progress: Callable[[str], None]
    ) -> dict[str, float]:
        """Seconds a token of all sessions: of one alone, of all plain, and of all drafted, in turning order."""
        count = self.settings.at_once
        chosen = [prompts[(number * count + each) % len(prompts)] for each in range(count)]
        taken = {}
        for name in TOGETHER[::-1] if number % 2 else TOGETHER:
            progress(f"{where}, {name}")
            batch = chosen[:1] if name == ALONE else chosen
            replies = await asyncio.gather(
                *(self._reply(prompt, draft=name == DRAFTED, ignore_eos=True) for prompt in batch)
            )
            tokens, seconds = in_common([arrivals for _, arrivals in replies])
            taken[name] = seconds / max(1, tokens)
        return taken

    async def _reply(
        self, prompt: Sequence[int], *, draft: bool, ignore_eos: bool = False
    ) -> tuple[list[int], Arrivals]:
        tokens: list[int] = []
        arrivals: Arrivals = []
        async for event in self.client.generate(
            Tokens(prompt),
            max_tokens=self.settings.new_tokens,
            temperature=0.0,
            draft=draft,
            ignore_eos=ignore_eos,
            learn=False,  # the prompts come again
        ):
            if isinstance(event, Delta) and event.token_ids:
                arrivals.append((time.perf_counter(), len(event.token_ids)))
                tokens += event.token_ids
        return tokens, of_decoding(arrivals)


def over_alone(together_s: Sequence[float], alone_s: Sequence[float]) -> dict[str, float]:
    """Seconds a token of all sessions together, and of one alone, as tokens a second and their ratio."""
    ratio: Ratio = ratio_of(together_s, alone_s)
    return {
        "tokens_per_s": 1 / ratio.ours_s,
        "alone_tokens_per_s": 1 / ratio.base_s,
        "ratio": ratio.mean,
        "low": ratio.low,
        "high": ratio.high,
        "batches": ratio.pairs,
    }


@asynccontextmanager
async def own_stack(settings: OwnSettings, dtype: str) -> AsyncIterator[Own]:
    """A stack in one format.

    Raises ValidationError for a format that settings do not know, RuntimeError with the reason if it does not start.
    """
    config = StackConfig(
        TargetConfig(model=settings.model, dtype=dtype, max_sessions=max(32, settings.at_once)),
        settings.drafter,
        target_threads=settings.threads,
        drafter_threads=settings.drafter_threads,
    )
    async with running(config) as services, AsyncClient(services.address) as client:
        yield Own(dtype, client, settings)


@asynccontextmanager
async def own_stacks(
    settings: OwnSettings, dtypes: Sequence[str], progress: Callable[[str], None]
) -> AsyncIterator[tuple[list[Own], list[str]]]:
    """A stack for each format, all of them running, and a sentence for each format that was skipped.

    Raises RuntimeError if the first one, which the others are compared with, does not start.
    """
    found: list[Own] = []
    skipped: list[str] = []
    async with AsyncExitStack() as stack:
        for dtype in dtypes:
            progress(f"starting gateway, target and drafter, {dtype}")
            try:
                found.append(await stack.enter_async_context(own_stack(settings, dtype)))
            except (ValidationError, RuntimeError) as error:
                if not found:
                    raise
                skipped.append(f"{dtype} is skipped: {_reason(error)}")
        yield found, skipped


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
