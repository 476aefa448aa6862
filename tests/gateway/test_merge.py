"""Streams merged into one: order, back-pressure, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from gateway.rig import until, within
from paceline.gateway.merge import merged


class Source:
    """A stream that tells what was asked of it. `gate` holds each item up."""

    def __init__(self, items: list[str], *, gate: asyncio.Event | None = None, error: Exception | None = None) -> None:
        self.items, self.gate, self.error = items, gate, error
        self.asked, self.closed = 0, False

    async def stream(self) -> AsyncGenerator[str, None]:
        try:
            for item in self.items:
                self.asked += 1
                if self.gate is not None:
                    await self.gate.wait()
                yield item
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def test_items_of_each_stream_stay_in_order_and_none_is_lost() -> None:
    sources = [Source([f"{name}{number}" for number in range(20)]) for name in "abc"]
    found = [item async for item in merged([source.stream() for source in sources])]
    assert sorted(found) == sorted(item for source in sources for item in source.items)
    for source in sources:
        assert [item for item in found if item in source.items] == source.items
    assert found[:6] == ["a0", "b0", "c0", "a1", "b1", "c1"], "who has waited longest comes first"


async def test_a_stream_that_waits_holds_up_no_other() -> None:
    gate = asyncio.Event()
    slow, quick = Source(["s0"], gate=gate), Source(["q0", "q1", "q2"])
    async with aclosing(merged([slow.stream(), quick.stream()])) as items:
        assert [await within(anext(items)) for _ in range(3)] == ["q0", "q1", "q2"]
        gate.set()
        assert await within(anext(items)) == "s0"
        assert await within(anext(items, None)) is None


async def test_nothing_is_read_ahead_of_who_takes_it() -> None:
    sources = [Source([str(number) for number in range(100)]) for _ in range(3)]
    async with aclosing(merged([source.stream() for source in sources])) as items:
        for _ in range(3):
            await anext(items)
        for _ in range(50):  # turns of the loop in which a reader that is ahead would go on
            await asyncio.sleep(0)
        assert max(source.asked for source in sources) <= 2
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_leaving_closes_every_stream_also_those_that_wait(count: int) -> None:
    sources = [Source(["x", "y"]), *(Source(["z"], gate=asyncio.Event()) for _ in range(count - 1))]
    async with aclosing(merged([source.stream() for source in sources])) as items:
        assert await within(anext(items)) == "x"
    assert all(source.closed for source in sources)


async def test_a_cancelled_reader_closes_every_stream() -> None:
    sources = [Source(["x"], gate=asyncio.Event()) for _ in range(3)]

    async def read() -> None:
        async with aclosing(merged([source.stream() for source in sources])) as items:
            async for _ in items:
                pass

    reading = asyncio.create_task(read())
    await until(lambda: all(source.asked for source in sources))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(reading)
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("others", [0, 2])
async def test_an_error_ends_all(others: int) -> None:
    failing = Source(["x"], error=ValueError("as told"))
    waiting = [Source(["y"], gate=asyncio.Event()) for _ in range(others)]
    async with aclosing(merged([source.stream() for source in (failing, *waiting)])) as items:
        assert await within(anext(items)) == "x"
        with pytest.raises(ValueError, match="as told"):
            await within(anext(items))
    assert all(source.closed for source in (failing, *waiting))


async def test_two_errors_at_once_are_one() -> None:
    sources = [Source([], error=ValueError(name)) for name in "ab"]
    with pytest.raises(ValueError, match="a"):
        await anext(merged([source.stream() for source in sources]))
    assert all(source.closed for source in sources)
