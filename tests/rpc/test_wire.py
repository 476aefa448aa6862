"""Statuses, sizes, certificates and many streams over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.certificates import Authority
from paceline import errors
from paceline.rpc import status
from paceline.rpc.channels import MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.server import DataPlaneServer
from paceline.rpc.tls import TlsConfig
from paceline.v1 import draft_pb2, draft_pb2_grpc

SERVICE = "paceline.v1.DraftService"
MADE = {errors.InvalidField: errors.InvalidField("top_p", 2, "0 to 1")}
TYPE_AFTER = {  # what the other end makes of a status; the others stand for several types, and stay what they are
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}


class Echo(draft_pb2_grpc.DraftServiceServicer):
    """Answers what `answer` returns or raises; a stream gets a reply of `size` bytes for each frame."""

    def __init__(self, answer: Callable[[], draft_pb2.GetDrafterStatusResponse], size: int = 0) -> None:
        self.answer, self.size = answer, size

    async def GetDrafterStatus(self, request, context):  # noqa: N802
        try:
            return self.answer()
        except Exception as error:
            await status.abort(context, error)

    async def Draft(self, request_iterator, context):  # noqa: N802
        async for frame in request_iterator:
            reply = draft_pb2.SessionReply(session=len(frame.updates))
            reply.error.message = "x" * self.size
            yield draft_pb2.DraftResponse(replies=[reply])


@asynccontextmanager
async def stub_of(
    servicer: Echo, *, served: TlsConfig | None = None, used: TlsConfig | None = None
) -> AsyncIterator[draft_pb2_grpc.DraftServiceStub]:
    server = DataPlaneServer(
        [SERVICE],
        lambda made: draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, made),
        host="127.0.0.1",
        port=0,
        tls=served,
    )
    address = await server.start()
    try:
        async with open_channel(address, used) as channel:
            yield draft_pb2_grpc.DraftServiceStub(channel)
    finally:
        await server.stop(0)


async def ask(stub: draft_pb2_grpc.DraftServiceStub) -> draft_pb2.GetDrafterStatusResponse:
    return await stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest(), timeout=20)


@pytest.mark.parametrize("kind", status.STATUS_OF, ids=lambda kind: kind.__name__)
async def test_an_error_crosses_the_wire_and_can_be_passed_on(kind: type[errors.PacelineError]) -> None:
    error = MADE.get(kind) or kind("what is wrong")

    def fail() -> draft_pb2.GetDrafterStatusResponse:
        raise error

    async with stub_of(Echo(fail)) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub)
    there = status.from_rpc_error(caught.value)
    assert type(there) is TYPE_AFTER.get(status.STATUS_OF[kind], status.RemoteError)
    assert status.status_of(there) == (status.STATUS_OF[kind], str(error))


async def test_an_unknown_error_tells_the_caller_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> draft_pb2.GetDrafterStatusResponse:
        raise KeyError("/secret/path")

    async with stub_of(Echo(fail)) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in repr(caught.value)
    assert "KeyError" not in repr(caught.value)
    assert "/secret/path" in caplog.text


def frame(size: int) -> draft_pb2.DraftRequest:
    opened = draft_pb2.OpenSession(context_tokens=bytes(size))
    return draft_pb2.DraftRequest(updates=[draft_pb2.SessionUpdate(open=opened)])


@pytest.mark.parametrize(("sent", "returned"), [(MAX_MESSAGE_BYTES - 1024, 0), (0, MAX_MESSAGE_BYTES - 1024)])
async def test_messages_up_to_the_limit_pass(sent: int, returned: int) -> None:
    """Case F1: the default of gRPC, 4 MiB, is raised on both ends."""
    async with stub_of(Echo(draft_pb2.GetDrafterStatusResponse, returned)) as stub:
        call = stub.Draft()
        await call.write(frame(sent))
        answer = await call.read()
        assert len(answer.replies[0].error.message) == returned
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_reply_over_the_limit_ends_its_call_only() -> None:
    async with stub_of(Echo(draft_pb2.GetDrafterStatusResponse, MAX_MESSAGE_BYTES)) as stub:
        call = stub.Draft()
        await call.write(frame(0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await ask(stub) == draft_pb2.GetDrafterStatusResponse()


async def test_a_hundred_and_fifty_streams_on_one_channel_all_move() -> None:
    """Case F6."""
    async with stub_of(Echo(draft_pb2.GetDrafterStatusResponse)) as stub:
        calls = [stub.Draft() for _ in range(150)]
        for _ in range(2):  # all are open at once when the second round starts
            for call in calls:
                await call.write(frame(4))
            answers = await asyncio.wait_for(asyncio.gather(*(call.read() for call in calls)), 30)
            assert [answer.replies[0].session for answer in answers] == [1] * 150
        for call in calls:
            call.cancel()


async def test_tls_without_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    served = TlsConfig(cert=cert, key=key)
    async with stub_of(
        Echo(draft_pb2.GetDrafterStatusResponse), served=served, used=TlsConfig(ca=authority.certificate)
    ) as stub:
        await ask(stub)
    async with stub_of(
        Echo(draft_pb2.GetDrafterStatusResponse), served=served, used=TlsConfig(ca=other.certificate)
    ) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_keeps_out_who_another_authority_signed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost")
    (tmp_path / "other").mkdir()
    forged = Authority(tmp_path / "other").issue("localhost")
    served = TlsConfig(cert=cert, key=key, ca=authority.certificate)
    used = TlsConfig(cert=forged[0], key=forged[1], ca=authority.certificate)
    async with stub_of(Echo(draft_pb2.GetDrafterStatusResponse), served=served, used=used) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_follows_what_the_server_says() -> None:
    server = DataPlaneServer([SERVICE], lambda made: None, host="127.0.0.1", port=0)
    address = await server.start()
    try:
        async with open_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            await server.set_serving(False)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
    finally:
        await server.stop(0)
