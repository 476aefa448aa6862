"""Streams of DraftService: company, reopening, queues, a proposer that hangs, and what is left when they end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.proposer import DraftOptions, Growth, Want
from paceline.drafter.server import DrafterServer
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.errors import Unavailable
from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.speculation.rows import Row
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc

WAIT_S = 60.0
PROTOCOL = draft_pb2.SESSION_ERROR_CODE_PROTOCOL


def options(*, learn: bool = True) -> draft_pb2.DraftOptions:
    sampling = common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0)
    return draft_pb2.DraftOptions(proposal=common_pb2.PROPOSAL_RANKED, sampling=sampling, learn=learn)


def opened(session: int, context: Sequence[int], epoch: int = 1, **changes: object) -> draft_pb2.SessionUpdate:
    fields: dict[str, object] = {
        "context_tokens": ints_to_bytes(context),
        "prompt_length": len(context),
        "vocab_size": 100,
        "options": options(),
        "budget": 4,
        **changes,
    }
    return draft_pb2.SessionUpdate(session=session, epoch=epoch, open=draft_pb2.OpenSession(**fields))  # type: ignore[arg-type]


def advanced(
    session: int, base_length: int, tokens: Sequence[int], epoch: int = 1, budget: int = 4
) -> draft_pb2.SessionUpdate:
    advance = draft_pb2.AdvanceSession(base_length=base_length, tokens=ints_to_bytes(tokens), budget=budget)
    return draft_pb2.SessionUpdate(session=session, epoch=epoch, advance=advance)


def closed(session: int, epoch: int = 1) -> draft_pb2.SessionUpdate:
    return draft_pb2.SessionUpdate(session=session, epoch=epoch, close=draft_pb2.CloseSession())


class Stream:
    """A target's end of one stream."""

    def __init__(self, stub: draft_pb2_grpc.DraftServiceStub) -> None:
        self.call = stub.Draft()

    async def send(self, *updates: draft_pb2.SessionUpdate) -> None:
        await self.call.write(draft_pb2.DraftRequest(updates=updates))

    async def replies(self, count: int) -> dict[int, draft_pb2.SessionReply]:
        """The next replies, by session."""
        found: dict[int, draft_pb2.SessionReply] = {}
        async with asyncio.timeout(WAIT_S):
            while len(found) < count:
                response = await self.call.read()
                assert response is not grpc.aio.EOF
                found |= {reply.session: reply for reply in response.replies}
        return found

    async def status(self) -> grpc.StatusCode:
        """How the stream ends."""
        async with asyncio.timeout(WAIT_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError:
                pass
            return await self.call.code()


class Gated:
    """The suffix proposer behind a gate that a test may shut."""

    def __init__(self) -> None:
        self.inner = SuffixProposer(TextStore(MB), 8, 0.01)
        self.name, self.tokenizer_fingerprint, self.context_length = "gated", "", 0
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Event()

    def open(self, session: int, context: np.ndarray, prompt_length: int, options: DraftOptions) -> None:
        self.inner.open(session, context, prompt_length, options)

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        self.inner.advance(session, tokens)

    def close(self, session: int) -> None:
        self.inner.close(session)

    def row(self, session: int, row: Row) -> None:
        self.inner.row(session, row)

    def propose(self, wants: Sequence[Want]) -> list[Growth | None]:
        self.inside.set()
        self.gate.wait()
        return self.inner.propose(wants)

    @property
    def held(self) -> int:
        return len(self.inner._sessions)


class Served:
    """A drafter and a channel to it."""

    def __init__(self, server: DrafterServer, proposer: Gated, channel: grpc.aio.Channel) -> None:
        self.server, self.proposer = server, proposer
        self.stub = draft_pb2_grpc.DraftServiceStub(channel)

    def stream(self) -> Stream:
        return Stream(self.stub)

    async def until(self, met: Callable[[], bool]) -> None:
        """Waits for a state that other threads bring about."""
        async with asyncio.timeout(WAIT_S):
            while not met():  # noqa: ASYNC110 - the states of other threads have no event
                await asyncio.sleep(0.001)

    async def until_empty(self) -> None:
        await self.until(lambda: (self.server.sessions, self.server.streams, self.proposer.held) == (0, 0, 0))


@asynccontextmanager
async def drafter(**settings: object) -> AsyncIterator[Served]:
    proposer = Gated()
    server = DrafterServer(DrafterConfig(**settings), proposer)  # type: ignore[arg-type]
    address = await server.start()
    try:
        async with open_channel(address) as channel:
            yield Served(server, proposer, channel)
    finally:
        proposer.gate.set()
        await server.stop(0.0)


def tokens_of(reply: draft_pb2.SessionReply) -> list[int]:
    assert reply.WhichOneof("reply") == "tree", reply
    return bytes_to_ints(reply.tree.tokens).tolist()


async def test_sessions_of_a_stream_are_drafted_each_from_its_own_text() -> None:
    async with drafter() as served:
        stream = served.stream()
        await stream.send(opened(1, [1, 2, 3, 4, 1, 2]), opened(2, [7, 8, 9, 7], epoch=5))
        replies = await stream.replies(2)
        assert tokens_of(replies[1])[:2] == [3, 4]
        assert tokens_of(replies[2])[:2] == [8, 9]
        assert (replies[1].tree.base_length, replies[2].epoch) == (6, 5)
        await stream.send(advanced(1, 6, [3]), advanced(2, 4, [8], epoch=5))
        replies = await stream.replies(2)
        assert tokens_of(replies[1])[0] == 4
        assert tokens_of(replies[2])[0] == 9


async def test_the_same_number_on_two_streams_is_two_sessions() -> None:
    async with drafter() as served:
        one, two = served.stream(), served.stream()
        await one.send(opened(1, [1, 2, 1]))
        await two.send(opened(1, [5, 6, 5]))
        assert tokens_of((await one.replies(1))[1])[0] == 2
        assert tokens_of((await two.replies(1))[1])[0] == 6
        one.call.cancel()
        await served.until(lambda: served.server.sessions == 1)
        await two.send(advanced(1, 3, [6]))
        assert tokens_of((await two.replies(1))[1])[0] == 5


@pytest.mark.parametrize(
    ("faulty", "named"),
    [
        (advanced(1, 4, [2]), "base length 4, the session has 3 tokens"),
        (advanced(1, 2, [2]), "base length 2, the session has 3 tokens"),
        (advanced(1, 3, [100]), "allowed: 0 to 99"),
        (advanced(1, 3, [-1]), "allowed: 0 to 99"),
        (opened(1, [500], epoch=2), "context_tokens"),
        (advanced(1, 3, [2], epoch=2), "not open"),
    ],
)
async def test_a_session_that_breaks_the_protocol_is_freed_and_may_open_again(
    faulty: draft_pb2.SessionUpdate, named: str
) -> None:
    async with drafter() as served:
        stream = served.stream()
        await stream.send(opened(1, [1, 2, 1]))
        await stream.replies(1)
        await stream.send(faulty)
        error = (await stream.replies(1))[1]
        assert (error.error.code, error.epoch) == (PROTOCOL, faulty.epoch)
        assert named in error.error.message
        await served.until(lambda: served.proposer.held == 0)
        await stream.send(opened(1, [1, 2, 1], epoch=3))
        assert tokens_of((await stream.replies(1))[1])[0] == 2


async def test_what_queued_up_is_drafted_once() -> None:
    async with drafter() as served:
        stream = served.stream()
        served.proposer.gate.clear()
        await stream.send(opened(1, [1, 2, 3, 4, 5, 1]))
        await served.until(served.proposer.inside.is_set)
        for index, token in enumerate((2, 3, 4)):
            await stream.send(advanced(1, 6 + index, [token]))
        await served.until(lambda: len(served.server._engine._inbox) == 3)  # type: ignore[union-attr]
        served.proposer.gate.set()
        bases = []
        while not bases or bases[-1] < 9:
            bases.append((await stream.replies(1))[1].tree.base_length)
        assert bases in ([6, 9], [9]), "the tree of the full context, and at most the one that was under way"


async def test_a_drafter_that_computes_still_answers_and_frees_what_leaves() -> None:
    """The event loop is never blocked: status, other streams and their ends go on while the proposer hangs."""
    async with drafter(stall_s=0.05) as served:
        stream = served.stream()
        served.server.healthy()
        served.proposer.gate.clear()
        await stream.send(opened(1, [1, 2, 1]))
        await served.until(served.proposer.inside.is_set)
        answer = await served.stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest(), timeout=WAIT_S)
        assert answer.status.streams == 1
        stream.call.cancel()
        await served.until(lambda: served.server.streams == 0)
        await asyncio.sleep(0.06)  # longer than stall_s
        with pytest.raises(Unavailable, match="no progress"):
            served.server.healthy()
        served.proposer.gate.set()
        await served.until_empty()
        await served.until(lambda: served.server._engine.stalled_s() == 0.0)  # type: ignore[union-attr]
        served.server.healthy()


async def test_a_draining_drafter_ends_its_streams_as_unavailable() -> None:
    async with drafter() as served:
        stream = served.stream()
        await stream.send(opened(1, [1, 2, 1]))
        await stream.replies(1)
        stopping = asyncio.create_task(served.server.stop(WAIT_S))
        assert await stream.status() is grpc.StatusCode.UNAVAILABLE
        assert "draining" in await stream.call.details()
        async with asyncio.timeout(WAIT_S / 2):
            await stopping  # at once, not after the time of grace


async def test_a_target_that_is_done_ends_its_stream_well() -> None:
    async with drafter() as served:
        stream = served.stream()
        await stream.send(opened(1, [1, 2, 1]))
        await stream.replies(1)
        await stream.call.done_writing()
        assert await stream.status() is grpc.StatusCode.OK
        await served.until_empty()


@pytest.mark.parametrize("seed", range(3))
async def test_two_hundred_sessions_at_random_leave_nothing_and_see_their_own_text_only(seed: int) -> None:
    """Cases E1 and E3: opened, closed, reopened, cancelled with their stream, cut in the middle of a frame's work."""
    generator = random.Random(seed)
    async with drafter(max_sessions=24, store_mb=1) as served:

        async def target(number: int) -> None:
            stream = served.stream()
            mine = [10 + 5 * number + step for step in range(5)]
            lengths: dict[int, tuple[int, int]] = {}  # session -> epoch, length
            for _ in range(generator.randrange(5, 20)):
                session = generator.randrange(4)
                epoch, length = lengths.get(session, (0, 0))
                if length and generator.random() < 0.3:
                    await stream.send(closed(session, epoch))
                    lengths[session] = (epoch, 0)
                    continue
                if length and generator.random() < 0.7:
                    token = mine[length % 5]
                    update = advanced(session, length, [token], epoch)
                    lengths[session] = (epoch, length + 1)
                else:
                    update = opened(session, (mine * 2)[:6], epoch + 1, options=options(learn=False))
                    lengths[session] = (epoch + 1, 6)
                await stream.send(update)
                if generator.random() < 0.2:
                    continue  # the answer is not waited for
                reply = None
                while reply is None or reply.epoch < lengths[session][0]:
                    reply = (await stream.replies(1)).get(session)
                if reply.WhichOneof("reply") == "error":
                    unheard = reply.error.code == PROTOCOL and "not open" in reply.error.message  # of being refused
                    assert unheard or reply.error.code == draft_pb2.SESSION_ERROR_CODE_OVERLOADED
                    lengths[session] = (lengths[session][0], 0)
                else:
                    assert set(tokens_of(reply)) <= set(mine)
            if generator.random() < 0.5:
                stream.call.cancel()
            else:
                await stream.call.done_writing()
                assert await stream.status() is grpc.StatusCode.OK

        await asyncio.gather(*(target(number) for number in range(18)))
        await served.until_empty()
        assert served.proposer.inner.store.tokens == 0
        assert not served.server._engine._sinks  # type: ignore[union-attr]
