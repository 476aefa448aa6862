"""The edge for Ray Serve's ingress: statuses are set and never raised, cancelling reaches the target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import pytest

from gateway.rig import Directory, FakeTarget, Script, Step, says, within
from gateway.tokenizers_for_tests import ByteTokenizer
from paceline.errors import Unavailable
from paceline.gateway.config import GatewayConfig
from paceline.gateway.edges import ServeEdge
from paceline.gateway.servicer import InferenceServicer
from paceline.v1 import inference_pb2, target_pb2

Request = inference_pb2.GenerateRequest


class Context:
    """What Serve hands over; records what it was told."""

    def __init__(self, **metadata: str) -> None:
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self._metadata = list(metadata.items())

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata


class Broken:
    """A directory with a bug."""

    async def lease(self) -> None:
        raise RuntimeError("secret: /root/.ssh at 0x7f")


async def edge_to(script: Script, target_out: list[FakeTarget]) -> ServeEdge:
    target = FakeTarget(script)
    target_out.append(target)
    return ServeEdge(InferenceServicer(Directory([await target.start()]), ByteTokenizer(), GatewayConfig()))


async def test_a_reply_streams_and_sets_no_status() -> None:
    targets: list[FakeTarget] = []
    edge, context = await edge_to(says([97, 98]), targets), Context(request_id="rid-42")
    try:
        replies = [reply async for reply in edge.generate(Request(text="x"), context)]
        assert [reply.WhichOneof("event") for reply in replies] == ["delta", "delta", "finish"]
        assert context.code is None
        assert targets[0].requests[0].request_id == "rid-42", "the client's name for the call goes on to the target"
        assert (await edge.get_model_info(inference_pb2.GetModelInfoRequest(), Context())).model == "fake"
        assert len((await edge.get_status(inference_pb2.GetStatusRequest(), Context())).targets) == 1
    finally:
        await targets[0].stop()


@pytest.mark.parametrize("hostile", ["x" * 1000, "line\nbreak"])
async def test_a_request_id_that_would_spoil_the_log_is_replaced(hostile: str) -> None:
    targets: list[FakeTarget] = []
    edge = await edge_to(says([97]), targets)
    try:
        assert [reply async for reply in edge.generate(Request(text="x"), Context(request_id=hostile))]
        assert len(targets[0].requests[0].request_id) == 32
    finally:
        await targets[0].stop()


@pytest.mark.parametrize(
    ("directory", "request_", "code", "text"),
    [
        (Directory([Unavailable("no target replica answered")]), Request(text="x"), "UNAVAILABLE", "no target replica"),
        (Broken(), Request(text="x"), "INTERNAL", "internal error"),
        (Broken(), Request(text=""), "INVALID_ARGUMENT", "text"),
        (Broken(), Request(text="x", min_p=0.1), "INVALID_ARGUMENT", "min_p"),
    ],
)
async def test_errors_become_statuses_without_internals(
    directory: object, request_: Request, code: str, text: str
) -> None:
    edge = ServeEdge(InferenceServicer(directory, ByteTokenizer(), GatewayConfig()))  # type: ignore[arg-type]
    context = Context()
    assert [reply async for reply in edge.generate(request_, context)] == []
    assert context.code is grpc.StatusCode[code]
    assert text in context.details
    assert "secret" not in context.details


async def test_unary_errors_become_statuses_without_internals() -> None:
    edge = ServeEdge(InferenceServicer(Broken(), ByteTokenizer(), GatewayConfig()))  # type: ignore[arg-type]
    context = Context()
    assert await edge.get_model_info(inference_pb2.GetModelInfoRequest(), context) is not None
    assert context.code is grpc.StatusCode.INTERNAL
    assert "secret" not in context.details


async def silent(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
    yield [97]
    await asyncio.Event().wait()


async def test_a_cancelled_task_frees_the_target_at_once() -> None:
    """This is how Serve ends a call: it cancels the task that runs the generator."""
    targets: list[FakeTarget] = []
    edge = await edge_to(silent, targets)
    first = asyncio.Event()

    async def serve() -> None:
        async for _ in edge.generate(Request(text="x"), Context()):
            first.set()

    try:
        task = asyncio.ensure_future(serve())
        await within(first.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await within(targets[0].cancelled.wait())
    finally:
        await targets[0].stop()


async def test_a_closed_generator_frees_the_target_at_once() -> None:
    targets: list[FakeTarget] = []
    edge = await edge_to(silent, targets)
    try:
        async with aclosing(edge.generate(Request(text="x"), Context())) as replies:
            await within(anext(replies))
        await within(targets[0].cancelled.wait())
    finally:
        await targets[0].stop()
