"""DraftService over loopback: what a target may say, what it may not, and what is left when it has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.proposer import Proposer
from paceline.drafter.server import DrafterServer
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from target.wire import until

VOCAB = 50
CONTEXT = [1, 2, 3, 4, 1, 2]  # 3 comes next
PROTOCOL = draft_pb2.SESSION_ERROR_CODE_PROTOCOL
Update = draft_pb2.SessionUpdate


@asynccontextmanager
async def running(
    proposer: Proposer | None = None, **config: object
) -> AsyncIterator[tuple[DrafterServer, draft_pb2_grpc.DraftServiceStub]]:
    server = DrafterServer(DrafterConfig(**config), proposer)  # type: ignore[arg-type]
    address = await server.start()
    try:
        async with open_channel(address) as channel:
            yield server, draft_pb2_grpc.DraftServiceStub(channel)
    finally:
        await server.stop(0)


def opened(session: int, context: list[int] = CONTEXT, *, epoch: int = 1, budget: int = 4) -> Update:
    """As a target opens a session."""
    sampling = common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0)
    options = draft_pb2.DraftOptions(proposal=common_pb2.PROPOSAL_RANKED, sampling=sampling)
    return Update(
        session=session,
        epoch=epoch,
        open=draft_pb2.OpenSession(
            context_tokens=ints_to_bytes(context),
            prompt_length=len(context),
            vocab_size=VOCAB,
            options=options,
            budget=budget,
        ),
    )


def advanced(session: int, base: int, tokens: list[int], *, epoch: int = 1, budget: int = 4) -> Update:
    advance = draft_pb2.AdvanceSession(base_length=base, tokens=ints_to_bytes(tokens), budget=budget)
    return Update(session=session, epoch=epoch, advance=advance)


def closed(session: int, *, epoch: int = 1) -> Update:
    return Update(session=session, epoch=epoch, close=draft_pb2.CloseSession())


class Talk:
    """One stream; replies are taken one by one."""

    def __init__(self, stub: draft_pb2_grpc.DraftServiceStub) -> None:
        self.call = stub.Draft()
        self._replies: list[draft_pb2.SessionReply] = []

    async def send(self, *updates: Update) -> None:
        await self.call.write(draft_pb2.DraftRequest(updates=updates))

    async def take(self) -> draft_pb2.SessionReply:
        while not self._replies:
            response = await self.call.read()
            assert response is not grpc.aio.EOF
            self._replies += response.replies
        return self._replies.pop(0)


async def sessions_of(stub: draft_pb2_grpc.DraftServiceStub) -> int:
    return (await stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest())).status.sessions


async def left_with(stub: draft_pb2_grpc.DraftServiceStub, sessions: int) -> None:
    """Returns once that many sessions are open."""

    async def count() -> int:
        return await sessions_of(stub)

    await until(count, sessions)


async def test_a_session_from_open_to_close() -> None:
    async with running() as (_, stub):
        talk = Talk(stub)
        await talk.send(opened(7))
        first = await talk.take()
        assert (first.session, first.epoch, first.tree.base_length) == (7, 1, 6)
        assert bytes_to_ints(first.tree.tokens)[0] == 3
        assert len(first.tree.log_probs) == len(first.tree.tokens) == len(first.tree.parents) <= 16
        await talk.send(advanced(7, 6, [3, 4]))
        second = await talk.take()
        assert second.tree.base_length == 8
        assert bytes_to_ints(second.tree.tokens)[0] == 1
        assert await sessions_of(stub) == 1
        await talk.send(closed(7))
        await left_with(stub, 0)


def bad(change: Callable[[Update], object]) -> Update:
    update = opened(1, epoch=2)
    change(update)
    return update


REFUSED = {
    "odd bytes": (bad(lambda u: setattr(u.open, "context_tokens", b"12345")), "open.context_tokens"),
    "no context": (bad(lambda u: setattr(u.open, "context_tokens", b"")), "open.context_tokens"),
    "a negative id": (bad(lambda u: setattr(u.open, "context_tokens", ints_to_bytes([-1]))), "open.context_tokens"),
    "an id too large": (bad(lambda u: setattr(u.open, "context_tokens", ints_to_bytes([VOCAB]))), "got 50"),
    "no vocabulary": (bad(lambda u: u.open.ClearField("vocab_size")), "open.vocab_size"),
    "a prompt beyond the context": (bad(lambda u: setattr(u.open, "prompt_length", 7)), "open.prompt_length"),
    "no proposal": (bad(lambda u: u.open.options.ClearField("proposal")), "open.options.proposal"),
    "no strength": (bad(lambda u: setattr(u.open.options, "proposal", 2)), "open.options.strength"),
    "a choice without noise": (bad(lambda u: setattr(u.open.options, "choice", 1)), "open.options.choice: got 1"),
    "no temperature": (bad(lambda u: u.open.options.sampling.ClearField("temperature")), "sampling.temperature"),
    "top_p above 1": (bad(lambda u: setattr(u.open.options.sampling, "top_p", 1.5)), "sampling.top_p"),
    "nothing": (Update(session=1, epoch=2), "update"),
    "an unknown field": (
        Update(session=1, epoch=2, open=draft_pb2.OpenSession.FromString(b"\xb8\x3e\x01")),
        "open: field 999",
    ),
    "a gap": (advanced(1, 9, [3]), "base length 9, the session has 6"),
    "an emitted id too large": (advanced(1, 6, [VOCAB]), "50"),
    "a negative emitted id": (advanced(1, 6, [-1]), "-1"),
    "odd bytes of tokens": (Update(session=1, epoch=1, advance=draft_pb2.AdvanceSession(tokens=b"123")), "3 bytes"),
    "an epoch nobody opened": (advanced(1, 6, [3], epoch=5), "not open"),
}


@pytest.mark.parametrize(("update", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_wrong_update_costs_its_session_and_no_other(update: Update, text: str) -> None:
    async with running() as (_, stub):
        talk = Talk(stub)
        await talk.send(opened(1, budget=0), opened(2, budget=0))
        await left_with(stub, 2)
        await talk.send(update, advanced(2, 6, [3]))
        replies = {reply.session: reply for reply in (await talk.take(), await talk.take())}
        assert replies[1].error.code == PROTOCOL
        assert text in replies[1].error.message
        assert replies[1].epoch == update.epoch
        assert bytes_to_ints(replies[2].tree.tokens)[0] == 4
        await left_with(stub, 1)
        await talk.send(opened(1, epoch=9))
        assert (await talk.take()).tree.base_length == 6, "it may be opened again"


async def test_a_frame_with_an_unknown_field_ends_the_stream_by_name() -> None:
    async with running() as (_, stub):
        talk = Talk(stub)
        await talk.call.write(draft_pb2.DraftRequest.FromString(b"\xb8\x3e\x01"))
        with pytest.raises(grpc.aio.AioRpcError, match="DraftRequest: field 999") as caught:
            await talk.take()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_no_more_sessions_than_allowed_over_all_streams() -> None:
    async with running(max_sessions=2) as (_, stub):
        first, second = Talk(stub), Talk(stub)
        await first.send(opened(1), opened(2))
        assert [(await first.take()).WhichOneof("reply") for _ in range(2)] == ["tree", "tree"]
        await second.send(opened(1))
        reply = await second.take()
        assert reply.error.code == draft_pb2.SESSION_ERROR_CODE_OVERLOADED
        assert "allowed: 2" in reply.error.message
        await first.send(closed(2))
        await left_with(stub, 1)
        await second.send(opened(1, epoch=2))
        assert (await second.take()).tree.base_length == 6


@pytest.mark.parametrize("how", ["done", "cancelled"])
async def test_the_end_of_a_stream_frees_its_sessions_and_no_others(how: str) -> None:
    async with running() as (server, stub):
        leaving, staying = Talk(stub), Talk(stub)
        await leaving.send(*(opened(session) for session in range(20)))
        await staying.send(opened(3))
        for _ in range(20):
            await leaving.take()
        await staying.take()
        assert (server.sessions, server.streams) == (21, 2)
        if how == "done":
            await leaving.call.done_writing()
            assert await leaving.call.read() is grpc.aio.EOF
        else:
            leaving.call.cancel()
        await left_with(stub, 1)
        await staying.send(advanced(3, 6, [3]))
        assert (await staying.take()).tree.base_length == 7
        assert server.streams == 1


async def test_a_channel_that_breaks_frees_its_sessions() -> None:
    async with running() as (server, stub):
        async with open_channel((await status_of(stub)).address) as other:
            talk = Talk(draft_pb2_grpc.DraftServiceStub(other))
            await talk.send(opened(1))
            await talk.take()
        await left_with(stub, 0)
        assert server.streams == 0


async def status_of(stub: draft_pb2_grpc.DraftServiceStub):
    return (await stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest())).status


async def test_a_drafter_that_stops_says_so() -> None:
    async with running() as (server, stub):
        talk = Talk(stub)
        await talk.send(opened(1))
        await talk.take()
        await server.stop(5)
        with pytest.raises(grpc.aio.AioRpcError, match="draining") as caught:
            await talk.take()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_another_tokenizer_is_refused_by_session() -> None:
    async with running(SuffixProposer(TextStore(MB), 8, 0.01, tokenizer_fingerprint="mine")) as (_, stub):
        talk = Talk(stub)
        right = opened(2)
        right.open.tokenizer_fingerprint = "mine"
        await talk.send(opened(1), right)
        replies = {reply.session: reply for reply in (await talk.take(), await talk.take())}
        assert replies[1].error.code == draft_pb2.SESSION_ERROR_CODE_TOKENIZER_MISMATCH
        assert replies[2].HasField("tree")
        assert await sessions_of(stub) == 1
