"""A stack that is not there, for tests of studies whose arithmetic and parts are in question, and not their figures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from paceline_client.replies import Delta, Event, Finish, Reply, Speculation, Timings, Usage


class Broken(Exception):
    """The run ends here."""


class FakeStack:
    """Stands for `running` and `AsyncClient` at once: replies of the token 1, one a round, a breath apart."""

    def __init__(self) -> None:
        self.started = 0
        self.asked: list[bool | None] = []  # `draft` of each reply
        self.breaks_at: int | None = None  # replies after which the run ends

    @asynccontextmanager
    async def running(self, config: object) -> AsyncIterator[SimpleNamespace]:
        self.started += 1
        service = SimpleNamespace(pid=os.getpid())
        yield SimpleNamespace(address="nowhere", gateway=service, target=service, drafter=service)

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[FakeStack]:
        yield self

    async def generate(self, prompt: object, *, max_tokens: int, **fields: Any) -> AsyncIterator[Event]:
        if self.breaks_at is not None and len(self.asked) >= self.breaks_at:
            raise Broken
        self.asked.append(fields.get("draft"))
        for _ in range(max_tokens):
            await asyncio.sleep(0.0002)
            yield Delta((1,), "a")
        yield Finish(
            "length",
            "",
            Usage(3, max_tokens),
            Speculation(rounds=max_tokens, drafted=0, accepted=0, fallbacks={}),
            Timings(0.0, 0.0),
            0,
            "fake",
        )

    async def complete(self, prompt: object, *, max_tokens: int, **fields: Any) -> Reply:
        events = [event async for event in self.generate(prompt, max_tokens=max_tokens, **fields)]
        finish = events[-1]
        assert isinstance(finish, Finish)
        return Reply("", (1,) * max_tokens, finish)
