"""Ratios of speed through the whole stack: plain decoding against a bare loop, drafting against plain decoding."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from paceline.study.memory import resident_mib
from paceline.study.ratios import Ratio, interleaved_async, ratio_of
from paceline.study.report import Report
from paceline.study.stack import Stack, StackConfig, running
from paceline.target.config import TargetConfig
from paceline_client.client import AsyncClient
from paceline_client.replies import Delta, Finish
from paceline_client.request import Tokens

Progress = Callable[[str], None]


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


@dataclass(frozen=True, slots=True)
class Timed:
    """A reply and the seconds from its first token to its last."""

    tokens: int
    decode_s: float
    rounds: int
    drafted: int

    @property
    def per_token_s(self) -> float:
        """Seconds a token after the first."""
        return self.decode_s / max(1, self.tokens - 1)


async def study_speed(settings: SpeedSettings, progress: Progress) -> Report:
    """Interleaved pairs; prompts in turn. The bound of the interval that counts is the lower one.

    No reply that is timed is learned, so that a prompt that comes again finds no reply of its own.
    """
    torch.set_num_threads(settings.threads)
    folder = default_store().resolve(settings.model)
    tokenizer = load_tokenizer(folder)
    prompts = [chat_tokens(tokenizer, prompt.text, settings.prompt_tokens) for prompt in settings.prompts]
    target = TargetConfig(model=str(folder), dtype=settings.dtype)
    rows: list[dict[str, Any]] = []
    progress("measuring passes")
    spec = ModelSpec(str(folder), dtype=settings.dtype)
    costs = load_runner(spec, kv_tokens=1024, vocab_size=tokenizer.vocab_size, measure_s=5.0).costs
    progress("plain decoding against a bare loop")
    suffix = settings.drafter.proposer == "suffix"
    cold = settings.drafter.model_copy(update={"store_mb": 0.0}) if suffix else settings.drafter
    name = "suffix, own text only" if suffix else settings.drafter_name
    async with (
        running(StackConfig(target, cold, target_threads=settings.threads)) as stack,
        AsyncClient(stack.address) as client,
    ):
        rows.append(await _plain(settings, client, BareModel(folder, settings.dtype), prompts))
        progress(f"{name} against plain decoding")
        rows += await _drafting(settings, client, prompts, costs, name)
        memory = _memory(stack)
    if settings.warm_tokens:
        warm = StackConfig(target, settings.drafter, target_threads=settings.threads)
        async with running(warm) as stack, AsyncClient(stack.address) as client:
            await _serve(client, prompts, settings.warm_tokens, progress)
            name = f"{settings.drafter_name}, {settings.warm_tokens} tokens served"
            progress(f"{name} against plain decoding")
            rows += await _drafting(settings, client, prompts, costs, name)
            memory = _memory(stack)
    return Report(
        "speed",
        {"model": settings.model, "dtype": settings.dtype, "new_tokens": settings.new_tokens, "prompts": len(prompts)},
        rows,
        notes=[
            "ratio: seconds of the baseline over ours, per token; above 1 ours is faster",
            "low and high bound 95 % of what these prompts give, if each is measured twice or more",
            "low_prompts and high_prompts bound it for other prompts like these: they hold the spread between prompts",
            "ceiling: tokens a round over the cost of a pass of the mean size, one token's pass being 1",
        ],
        extra={"memory_mib": memory},
    )


async def _plain(
    settings: SpeedSettings, client: AsyncClient, bare: BareModel, prompts: Sequence[list[int]]
) -> dict[str, Any]:
    async def ours(pair: int) -> float:
        return (await _reply(client, prompts[pair % len(prompts)], settings.new_tokens, draft=False)).per_token_s

    async def base(pair: int) -> float:
        prompt = prompts[pair % len(prompts)]
        # In the thread that has loaded the model: OpenMP helpers of a second one would slow every operator.
        reply, taken_s = bare.decode_timed(prompt, settings.new_tokens)
        return taken_s / (len(reply) - 1)

    await ours(0), await base(0)
    times = await interleaved_async(ours, base, settings.pairs, len(prompts))
    prompt_of = [pair % len(prompts) for pair in range(settings.pairs)]
    return _row("plain through the stack", "bare cached loop", *_ratios(*times, prompt_of), 1.0)


async def _drafting(
    settings: SpeedSettings, client: AsyncClient, prompts: Sequence[list[int]], costs: PassCosts, name: str
) -> list[dict[str, Any]]:
    """All prompts together, and each category."""
    drafted: list[Timed] = []

    async def ours(pair: int) -> float:
        drafted.append(await _reply(client, prompts[pair % len(prompts)], settings.new_tokens, draft=True))
        return drafted[-1].per_token_s

    async def base(pair: int) -> float:
        return (await _reply(client, prompts[pair % len(prompts)], settings.new_tokens, draft=False)).per_token_s

    await ours(0), await base(0)
    drafted.clear()
    times = await interleaved_async(ours, base, settings.pairs, len(prompts))
    kinds = [settings.prompts[pair % len(prompts)].category for pair in range(settings.pairs)]
    rows = []
    for kind in (None, *dict.fromkeys(kinds)):
        chosen = [pair for pair in range(settings.pairs) if kind in (None, kinds[pair])]
        if len(chosen) < 2 or (kind is not None and len(set(kinds)) == 1):
            continue
        ours_s, base_s = ([each[pair] for pair in chosen] for each in times)
        prompt_of = [pair % len(prompts) for pair in chosen]
        rounds = sum(drafted[pair].rounds for pair in chosen)
        per_round = sum(drafted[pair].tokens for pair in chosen) / rounds
        cost = _pass_cost(costs, 1 + sum(drafted[pair].drafted for pair in chosen) / rounds)
        shown = name if kind is None else f"{name}: {kind}"
        ratios = _ratios(ours_s, base_s, prompt_of)
        rows.append(_row(shown, "plain through the stack", *ratios, per_round, per_round / cost))
    return rows


def _pass_cost(costs: PassCosts, tokens: float) -> float:
    """Seconds of a pass of that mean size over those of one token; 1 where passes are not measured."""
    below = int(tokens)
    one, lower, upper = costs.seconds(1), costs.seconds(below), costs.seconds(below + 1)
    if one is None or lower is None or upper is None:
        return 1.0
    return (lower + (tokens - below) * (upper - lower)) / one


async def _reply(client: AsyncClient, prompt: list[int], new_tokens: int, *, draft: bool) -> Timed:
    first_at = last_at = 0.0
    finish: Finish | None = None
    async for event in client.generate(
        Tokens(prompt), max_tokens=new_tokens, temperature=0.0, draft=draft, ignore_eos=True, learn=False
    ):
        if isinstance(event, Delta):
            last_at = time.perf_counter()
            first_at = first_at or last_at
        else:
            finish = event
    assert finish is not None, "the client raises if the stream ends without a finish"
    return Timed(
        finish.usage.completion_tokens, last_at - first_at, finish.speculation.rounds, finish.speculation.drafted
    )


async def _serve(client: AsyncClient, prompts: Sequence[list[int]], tokens: int, progress: Progress) -> None:
    """Lets the stack serve sampled replies, sixteen at a time, so that the drafter's store learns from them."""
    served = number = 0

    async def worker() -> None:
        nonlocal served, number
        while served < tokens:
            number += 1
            reply = await client.complete(
                Tokens(prompts[number % len(prompts)]), max_tokens=512, temperature=0.7, top_p=0.9, seed=number
            )
            served += len(reply.token_ids)
            progress(f"served {served} of {tokens} tokens")

    await asyncio.gather(*(worker() for _ in range(16)))


def _memory(stack: Stack) -> dict[str, int]:
    services = {"gateway": stack.gateway, "target": stack.target, "drafter": stack.drafter}
    return {name: resident_mib(service.pid) for name, service in services.items() if service is not None}


def _ratios(ours_s: list[float], base_s: list[float], prompt_of: list[int]) -> tuple[Ratio, Ratio]:
    """Over these prompts as they are, and over them as draws of all prompts."""
    by_pair = ratio_of(ours_s, base_s)
    twice = len(ours_s) >= 2 * len(set(prompt_of))
    return ratio_of(ours_s, base_s, prompt_of) if twice else by_pair, by_pair


def _row(
    ours: str, base: str, ratio: Ratio, over_prompts: Ratio, per_round: float, ceiling: float = 1.0
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
