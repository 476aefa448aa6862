"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Items of all streams as they come, those of each in their order; the end when all have ended.

    Nothing is read ahead: a stream is asked for its next item when the last one was taken. However this ends, every
    stream is closed then. Raises what a stream raises.
    """
    if len(streams) == 1:  # the usual case needs no task for each item
        async with aclosing(streams[0]) as items:
            async for item in items:
                yield item
        return
    asked: dict[asyncio.Task[Item | None], AsyncGenerator[Item, None]] = {}
    try:
        for stream in streams:
            asked[asyncio.create_task(_next(stream))] = stream
        while asked:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in [each for each in asked if each in done]:  # who has waited longest comes first
                stream = asked.pop(task)
                found = task.result()
                if found is not None:
                    yield found
                    asked[asyncio.create_task(_next(stream))] = stream
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def _next(stream: AsyncGenerator[Item, None]) -> Item | None:
    """The next item; None at the end."""
    return await anext(stream, None)
