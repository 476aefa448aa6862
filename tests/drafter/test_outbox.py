"""Replies on their way: the newest of each session, whatever the target's pace."""

from __future__ import annotations

import asyncio

import pytest

from paceline.drafter.messages import Fault, Reply
from paceline.drafter.outbox import Outbox
from paceline.errors import Unavailable
from paceline.speculation.tree import DraftTree


def tree(session: int, base_length: int, epoch: int = 1) -> Reply:
    return Reply(session, epoch, base_length, DraftTree.empty())


async def test_the_newest_reply_of_each_session_is_taken_at_once() -> None:
    outbox = Outbox()
    for length in range(1000):
        outbox.put([tree(1, length), tree(2, length + 5)])
    assert [(reply.session, reply.base_length) for reply in await outbox.take()] == [(1, 999), (2, 1004)]


async def test_a_fault_is_not_hidden_by_what_follows_from_it() -> None:
    outbox = Outbox()
    refused = Reply(1, 3, fault=Fault.OVERLOADED)
    outbox.put([refused])
    outbox.put([Reply(1, 3, fault=Fault.PROTOCOL, message="the session is not open")])
    assert await outbox.take() == [refused]
    outbox.put([refused])
    outbox.put([tree(1, 7, epoch=4)])
    assert [reply.epoch for reply in await outbox.take()] == [4]


async def test_taking_waits_for_a_reply() -> None:
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put([tree(1, 1)])
    assert len(await taking) == 1


async def test_an_end_comes_after_what_waits_and_an_error_before() -> None:
    outbox = Outbox()
    outbox.put([tree(1, 1)])
    outbox.end()
    outbox.end(Unavailable("too late"))
    assert len(await outbox.take()) == 1
    assert await outbox.take() == []
    failed = Outbox()
    failed.put([tree(1, 1)])
    failed.end(Unavailable("draining"))
    with pytest.raises(Unavailable, match="draining"):
        await failed.take()
