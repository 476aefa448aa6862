"""Replies through a running stack, for the study of speed: timed ones, and those that a drafter's store learns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.study.arrivals import Arrivals, in_common, of_decoding
from paceline_client.client import AsyncClient
from paceline_client.replies import Delta, Finish
from paceline_client.request import Tokens

AT_ONCE = 16  # replies that are served to the store together


@dataclass(frozen=True, slots=True)
class Timed:
    """A reply, and its decoding once the prompt is read."""

    tokens: int
    decoded: int  # of them, in the seconds
    decode_s: float
    rounds: int
    drafted: int

    @property
    def per_token_s(self) -> float:
        """Seconds a token."""
        return self.decode_s / max(1, self.decoded)


async def timed_reply(client: AsyncClient, prompt: Sequence[int], new_tokens: int, *, draft: bool) -> Timed:
    """A greedy reply of `new_tokens`, which is not learned."""
    arrivals: Arrivals = []
    finish: Finish | None = None
    async for event in client.generate(
        Tokens(prompt), max_tokens=new_tokens, temperature=0.0, draft=draft, ignore_eos=True, learn=False
    ):
        if isinstance(event, Delta):
            arrivals.append((time.perf_counter(), len(event.token_ids)))
        else:
            finish = event
    assert finish is not None, "the client raises if the stream ends without a finish"
    decoded, decode_s = in_common([of_decoding(arrivals)])
    spent = finish.speculation
    return Timed(finish.usage.completion_tokens, decoded, decode_s, spent.rounds, spent.drafted)


async def serve(
    client: AsyncClient, prompts: Sequence[Sequence[int]], tokens: int, progress: Callable[[str], None]
) -> None:
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

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
