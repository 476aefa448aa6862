"""`paceline study threads`: how target and drafter share the cores of one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from paceline.drafter.config import DrafterConfig
from paceline.prompt_file import Prompt, prompt_tokens
from paceline.replicas import usable_cpus
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import load_tokenizer
from paceline.study.parts import Parts
from paceline.study.peers import System, Times, decode_all
from paceline.study.peers_own import OwnSettings, own_stack
from paceline.study.report import Report, finite

Threads = tuple[int, int]  # of the target, of the drafter


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """What to measure."""

    model: str
    prompts: Sequence[Prompt]
    drafter: DrafterConfig
    drafter_name: str
    dtype: str = "float32"
    threads: Sequence[Threads] = ((2, 2), (2, 1), (1, 1))  # the first is what the others are compared with
    new_tokens: int = 64
    prompt_tokens: int = 560
    repeats: int = 3


async def study_threads(settings: ThreadSettings, progress: Callable[[str], None]) -> Report:
    """A stack for each choice, all of them running; they decode the same prompts in turns, and idle otherwise."""
    torch.set_num_threads(1)  # this process computes nothing
    folder = default_store().resolve(settings.model)
    tokenizer = load_tokenizer(folder)
    prompts = [prompt_tokens(tokenizer, prompt.text, settings.prompt_tokens) for prompt in settings.prompts]
    systems: list[System] = []
    async with AsyncExitStack() as stack:
        for target, drafter in settings.threads:
            progress(f"starting gateway, target and drafter with {target} and {drafter} threads")
            own = OwnSettings(str(folder), settings.drafter, settings.new_tokens, target, drafter, 1)
            running = await stack.enter_async_context(own_stack(own, settings.dtype))
            systems += [replace(each, name=_named(each.name, (target, drafter))) for each in running.systems()]
        times = await decode_all(systems, prompts, settings.repeats, Parts(None, "threads", {}), progress)
    rows = [row for chosen in settings.threads for row in _rows(settings, times, chosen)]
    return Report(
        "threads",
        {
            "model": settings.model,
            "dtype": settings.dtype,
            "drafter": settings.drafter_name,
            "prompts": len(prompts),
            "new_tokens": settings.new_tokens,
            "repeats": settings.repeats,
            "cpus": usable_cpus(),
        },
        [finite(row) for row in rows],
        notes=[
            "over_first: speed over that of the first choice of threads, same decoding; above 1 it is faster",
            "low and high bound 95 % of what these prompts give, if each is decoded twice or more",
        ],
    )


def _named(name: str, threads: Threads) -> str:
    return f"{name}, {threads[0]}:{threads[1]} threads"


def _rows(settings: ThreadSettings, times: Mapping[str, Times], chosen: Threads) -> list[dict[str, Any]]:
    rows = []
    for name in ("paceline plain", "paceline drafted"):
        ours, first = (times[f"{_named(name, each)}, {settings.dtype}"] for each in (chosen, settings.threads[0]))
        pair = ours.over(first)
        ratio = None if pair is None else pair[0]
        seconds, rounds = (sum(getattr(each, part) for each in ours.replies) for part in ("seconds", "rounds"))
        rows.append(
            {
                "target_threads": chosen[0],
                "drafter_threads": chosen[1],
                "system": name,
                "tokens_per_s": ours.rate().mean,
                "ms_per_round": 1e3 * seconds / max(1, rounds),
                "over_first": None if ratio is None else ratio.mean,
                "low": None if ratio is None else ratio.low,
                "high": None if ratio is None else ratio.high,
            }
        )
    return rows
