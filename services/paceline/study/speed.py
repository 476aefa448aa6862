"""Ratios of speed through the whole stack: plain decoding against a bare loop, drafting against plain decoding."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.drafter.config import DrafterConfig
from paceline.prompt_file import Prompt, chat_tokens
from paceline.runtime.costs import PassCosts
from paceline.runtime.models import ModelSpec
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import load_tokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.study.bare import BareModel
from paceline.study.loaded import check_reply
from paceline.study.memory import resident_mib
from paceline.study.parts import Parts, Progress
from paceline.study.ratios import pair_in_turn
from paceline.study.report import Report, timed_on
from paceline.study.speed_replies import serve, timed_reply
from paceline.study.speed_rows import drafted_rows, plain_row
from paceline.study.stack import Stack, StackConfig, running
from paceline.study.turns import Turns, runs_note, tell_kept
from paceline.target.config import TargetConfig
from paceline_client.client import AsyncClient

PLAIN, COLD, WARM = "plain", "drafted", "warm"  # what is measured, each in pairs
STAGES = {
    PLAIN: "plain decoding against a bare loop",
    COLD: "drafted against plain decoding",
    WARM: "drafted against plain decoding, with what was served",
}


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """What to measure."""

    model: str
    prompts: Sequence[Prompt]
    dtype: str = "float32"
    prompt_tokens: int = 560
    new_tokens: int = 96
    pairs: int = 52  # twice as many as prompts or more, for an interval that leaves the spread between prompts out
    warm_tokens: int = 100_000  # tokens served before the warm measurement; 0 leaves it out
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    drafter_name: str = "suffix"
    threads: int = 2

    @property
    def kinds(self) -> list[str]:
        """What is measured."""
        return [PLAIN, COLD, *([WARM] if self.warm_tokens else [])]

    def keys(self, kind: str) -> list[str]:
        """Keys of the parts in which its pairs are kept."""
        return [f"{kind}-{pair}" for pair in range(self.pairs)]


async def study_speed(settings: SpeedSettings, out: Path | None, progress: Progress) -> Report:
    """Interleaved pairs; prompts in turn. The bound of the interval that counts is the lower one.

    No reply that is timed is learned, so that a prompt that comes again finds no reply of its own. Pairs of an earlier
    run into `out` are not measured again; what the drafter's store is to have learned is served again if a pair after
    it is missing.
    """
    torch.set_num_threads(settings.threads)
    folder = default_store().resolve(settings.model)
    tokenizer = load_tokenizer(folder)
    prompts = [chat_tokens(tokenizer, prompt.text, settings.prompt_tokens) for prompt in settings.prompts]
    check_reply("--new-tokens", settings.new_tokens, settings.model, folder, prompts)
    parts = Parts(out, "speed", _depends(settings, prompts))
    keys = [key for kind in settings.kinds for key in settings.keys(kind)]
    tell_kept("speed", parts, keys)

    def pass_s() -> Mapping[int, float]:
        progress("measuring passes")
        spec = ModelSpec(str(folder), dtype=settings.dtype)
        return load_runner(spec, kv_tokens=1024, vocab_size=tokenizer.vocab_size, measure_s=5.0).costs.seconds_by_size

    costs = PassCosts({int(size): seconds for size, seconds in parts.made("costs", pass_s).items()})
    run = _Run(settings, folder, prompts, parts, progress)
    turns, memory = await run.cold()
    name = "suffix, own text only" if settings.drafter.proposer == "suffix" else settings.drafter_name
    categories = [prompt.category for prompt in settings.prompts]
    rows = [plain_row(turns[PLAIN].all(), len(prompts))]
    rows += drafted_rows(turns[COLD].all(), categories, costs, name)
    if settings.warm_tokens:
        warm, memory = await run.warm()
        name = f"{settings.drafter_name}, {settings.warm_tokens} tokens served"
        rows += drafted_rows(warm.all(), categories, costs, name)
    runs = parts.runs(keys)
    return Report(
        "speed",
        {"model": settings.model, "dtype": settings.dtype, "new_tokens": settings.new_tokens, "prompts": len(prompts)},
        rows,
        notes=[
            "ratio: seconds of the baseline over ours, per token once the prompt is read; above 1 ours is faster",
            "low and high bound 95 % of what these prompts give, if each is measured twice or more",
            "low_prompts and high_prompts bound it for other prompts like these: they hold the spread between prompts",
            "ceiling: tokens a round over the cost of a pass of the mean size, one token's pass being 1",
            *runs_note(runs),
        ],
        extra={"memory_mib": memory, "runs": runs},
    )


def _depends(settings: SpeedSettings, prompts: Sequence[Sequence[int]]) -> Mapping[str, object]:
    """What a pair depends on. More pairs go on from fewer ones."""
    return {
        "model": settings.model,
        "dtype": settings.dtype,
        "new_tokens": settings.new_tokens,
        "warm_tokens": settings.warm_tokens,
        "drafter": settings.drafter.model_dump(),
        "threads": settings.threads,
        "prompts": prompts,
        "machine": timed_on(),
    }


class _Run:
    """Pairs of the study, measured or found. No stack is started for pairs that are all there."""

    def __init__(
        self,
        settings: SpeedSettings,
        folder: Path,
        prompts: Sequence[list[int]],
        parts: Parts,
        progress: Progress,
    ) -> None:
        self._settings, self._folder, self._prompts = settings, folder, prompts
        self._parts, self._progress = parts, progress

    async def cold(self) -> tuple[Mapping[str, Turns], Mapping[str, int]]:
        """Plain and drafted pairs of a drafter that has served nothing, and MiB by service."""
        settings = self._settings
        suffix = settings.drafter.proposer == "suffix"
        drafter = settings.drafter.model_copy(update={"store_mb": 0.0}) if suffix else settings.drafter
        turns = {kind: Turns(self._parts, settings.keys(kind)) for kind in (PLAIN, COLD)}
        memory = self._parts.get(f"memory-{COLD}")
        if memory is None or any(each.missing for each in turns.values()):
            async with running(self._stack(drafter)) as stack, AsyncClient(stack.address) as client:
                if turns[PLAIN].missing:
                    self._progress("loading the bare loop's model")
                    bare = BareModel(self._folder, settings.dtype)
                    await self._measure(PLAIN, turns[PLAIN], self._replies(client, draft=False), self._bare(bare))
                await self._drafting(COLD, turns[COLD], client)
                memory = self._parts.put(f"memory-{COLD}", _memory(stack))
        return turns, memory

    async def warm(self) -> tuple[Turns, Mapping[str, int]]:
        """Drafted pairs of a drafter whose store has learned what was served, and MiB by service."""
        turns, memory = Turns(self._parts, self._settings.keys(WARM)), self._parts.get(f"memory-{WARM}")
        if memory is None or turns.missing:
            async with running(self._stack(self._settings.drafter)) as stack, AsyncClient(stack.address) as client:
                await serve(client, self._prompts, self._settings.warm_tokens, self._progress)
                await self._drafting(WARM, turns, client)
                memory = self._parts.put(f"memory-{WARM}", _memory(stack))
        return turns, memory

    def _stack(self, drafter: DrafterConfig) -> StackConfig:
        target = TargetConfig(model=str(self._folder), dtype=self._settings.dtype)
        return StackConfig(target, drafter, target_threads=self._settings.threads)

    async def _drafting(self, kind: str, turns: Turns, client: AsyncClient) -> None:
        if turns.missing:
            await self._measure(kind, turns, self._replies(client, draft=True), self._replies(client, draft=False))

    def _replies(self, client: AsyncClient, *, draft: bool) -> Callable[[int], Awaitable[dict[str, Any]]]:
        async def reply(pair: int) -> dict[str, Any]:
            prompt = self._prompts[pair % len(self._prompts)]
            return asdict(await timed_reply(client, prompt, self._settings.new_tokens, draft=draft))

        return reply

    def _bare(self, bare: BareModel) -> Callable[[int], Awaitable[float]]:
        async def reply(pair: int) -> float:
            # In the thread that has loaded the model: OpenMP helpers of a second one would slow every operator.
            tokens, taken_s = bare.decode_timed(self._prompts[pair % len(self._prompts)], self._settings.new_tokens)
            return taken_s / (len(tokens) - 1)

        return reply

    async def _measure(
        self,
        kind: str,
        turns: Turns,
        ours: Callable[[int], Awaitable[Any]],
        base: Callable[[int], Awaitable[Any]],
    ) -> None:
        """Warms up, and measures the pairs that are missing."""
        await ours(0), await base(0)
        for pair, key in enumerate(self._settings.keys(kind)):
            self._progress(turns.told(f"{STAGES[kind]}: pair {pair + 1} of {self._settings.pairs}"))
            await turns.take(key, partial(_pair, ours, base, pair, len(self._prompts)))


async def _pair(
    ours: Callable[[int], Awaitable[Any]], base: Callable[[int], Awaitable[Any]], pair: int, cycle: int
) -> dict[str, Any]:
    ours_found, base_found = await pair_in_turn(ours, base, pair, cycle)
    return {"ours": ours_found, "base": base_found}


def _memory(stack: Stack) -> dict[str, int]:
    services = {"gateway": stack.gateway, "target": stack.target, "drafter": stack.drafter}
    return {name: resident_mib(service.pid) for name, service in services.items() if service is not None}
