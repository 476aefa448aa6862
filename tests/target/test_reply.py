"""The way of tokens from the compute thread to a reader: bounded, complete, one wake-up per step."""

from __future__ import annotations

import asyncio

import pytest

from paceline.errors import EngineFault
from paceline.runtime.toy import ToyRunner
from paceline.target.config import TargetConfig
from paceline.target.engine import TargetEngine
from paceline.target.finish import Finish
from paceline.target.outbox import LoopOutbox
from paceline.target.record import RoundRecord
from paceline.target.reply import Piece, ReplyStream
from paceline.target.turn import NOTHING
from target.rig import plain, random_table, request
from target.wire import until

TABLE = random_table(32, seed=1)


async def test_an_unread_session_pauses_at_the_bound_and_goes_on_when_read() -> None:
    wanted = request([1], 400)
    expected = plain(ToyRunner(TABLE), wanted)
    outbox = LoopOutbox(asyncio.get_running_loop())
    engine = TargetEngine(ToyRunner(TABLE), TargetConfig(), outbox=outbox)
    engine.start()
    try:
        session = 0
        resumed: list[int] = []

        def caught_up() -> None:
            resumed.append(session)
            engine.resume(session)

        slow = ReplyStream(outbox, 20, caught_up)
        session = engine.submit(wanted, slow)
        fast = ReplyStream(outbox, 20, lambda: None)
        engine.submit(request([2], 15), fast)
        while not isinstance(await fast.next(), Finish):
            pass

        async def paused() -> bool:
            return engine._roster.find(session).paused  # type: ignore[union-attr]

        await until(paused, True)
        assert engine.counters.totals().emitted == 15 + 20
        tokens: list[int] = []
        while not isinstance(piece := await slow.next(), Finish):
            assert len(piece.tokens) <= 20
            assert [token for each in piece.rounds for token in each.delivered] == piece.tokens
            tokens += piece.tokens
        assert tokens == expected
        assert resumed
    finally:
        await asyncio.to_thread(engine.stop)


def round_of(tokens: tuple[int, ...]) -> RoundRecord:
    return RoundRecord(1, "", 5, NOTHING, (), tokens[-1], tokens, None, None, None, 0.0, 1.0, 1)


async def test_tokens_before_the_end_and_errors_after_the_last_token() -> None:
    outbox = LoopOutbox(asyncio.get_running_loop())
    reply = ReplyStream(outbox, 8, lambda: None)
    first, second = round_of((1, 2)), round_of((3,))
    reply.tokens((1, 2), first)
    reply.tokens((3,), second)
    reply.fail(EngineFault("broken"))
    outbox.flush()
    assert await reply.next() == Piece([1, 2, 3], [first, second])
    with pytest.raises(EngineFault, match="broken"):
        await reply.next()


async def test_one_wake_up_per_flush() -> None:
    loop = asyncio.get_running_loop()
    outbox = LoopOutbox(loop)
    order: list[int] = []
    wakes = 0
    plain_call = loop.call_soon_threadsafe

    def counted(*args, **kwargs):
        nonlocal wakes
        wakes += 1
        return plain_call(*args, **kwargs)

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
    try:
        for number in range(5):
            outbox.post(lambda number=number: order.append(number))
        outbox.flush()
        outbox.flush()
        await asyncio.sleep(0)
    finally:
        del loop.call_soon_threadsafe  # type: ignore[attr-defined]
    assert order == [0, 1, 2, 3, 4]
    assert wakes == 1
