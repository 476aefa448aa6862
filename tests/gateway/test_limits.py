"""Ends from outside: clients that leave (E1), deadlines (F3), limits, slow parts that must not stop the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.rig import Directory, Nowhere, Script, Step, gateway, model, says, serve, until, within
from gateway.tokenizers_for_tests import ByteTokenizer
from paceline.errors import DeadlineExceeded as TooLate
from paceline.errors import Unavailable as NoTarget
from paceline.gateway.config import GatewayConfig
from paceline.gateway.deadline import Deadline
from paceline.gateway.servicer import InferenceServicer
from paceline.v1 import inference_pb2, target_pb2
from paceline_client import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable

Request = inference_pb2.GenerateRequest


def endless(first: int = 3) -> Script:
    """A few tokens, then nothing for ever."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        for _ in range(first):
            yield [97]
        await asyncio.Event().wait()

    return script


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_client_that_cancels_frees_the_target(after: int) -> None:
    async with gateway(endless(after)) as served:
        target = served.targets[0]
        call = served.stub.Generate(Request(text="x"))
        for _ in range(after):
            await within(call.read())
        waiting = asyncio.ensure_future(call.read())
        await until(lambda: target.active > 0)
        call.cancel()
        await within(target.cancelled.wait())
        await within(target.idle.wait())
        await asyncio.gather(waiting, return_exceptions=True)
        assert target.active == 0
        await until(lambda: served.server.servicer.requests == 0)


async def test_leaving_the_clients_loop_frees_the_target() -> None:
    async with gateway(endless()) as served:
        async with aclosing(served.client.generate("x")) as events:
            await within(anext(events))
        await within(served.targets[0].cancelled.wait())


async def test_a_client_whose_connection_breaks_frees_the_target() -> None:
    async with gateway(endless()) as served:
        channel = grpc.aio.insecure_channel(served.address)
        call = channel.unary_stream(
            "/paceline.v1.InferenceService/Generate", request_serializer=Request.SerializeToString
        )(Request(text="x"))
        await within(call.read())
        await channel.close()
        await within(served.targets[0].cancelled.wait())


@pytest.mark.parametrize("first", [0, 2])
async def test_deadline_ms_ends_the_call_and_the_work(first: int) -> None:
    async with gateway(endless(first)) as served:
        call = served.stub.Generate(Request(text="x", deadline_ms=300))
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await within(read_all(call))
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await within(served.targets[0].idle.wait())
        left_s = served.targets[0].left_s[0]
        assert left_s is not None
        assert 0 < left_s < 0.31, "gRPC rounds deadlines up to milliseconds"


async def test_the_calls_own_deadline_reaches_the_target() -> None:
    async with gateway(endless()) as served:
        call = served.stub.Generate(Request(text="x"), timeout=0.4)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await within(read_all(call))
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await within(served.targets[0].idle.wait())
        left_s = served.targets[0].left_s[0]
        assert left_s is not None
        assert 0 < left_s < 0.41


async def test_the_clients_timeout_is_one_kind_of_error() -> None:
    async with gateway(endless()) as served:
        with pytest.raises(DeadlineExceeded):
            await within(served.client.complete("x", timeout_s=0.3))
        await within(served.targets[0].idle.wait())


async def test_no_deadline_reaches_the_target_as_none() -> None:
    async with gateway(says([97])) as served:
        await within(served.client.complete("x"))
        assert served.targets[0].left_s == [None]


async def test_a_deadline_that_has_passed_does_no_work() -> None:
    directory = Directory([NoTarget("must not be asked")])
    servicer = InferenceServicer(directory, ByteTokenizer(), GatewayConfig())
    with pytest.raises(TooLate):
        await anext(servicer.generate(Request(text="x"), time_left_s=-0.1))
    assert directory.asked == 0
    assert servicer.requests == 0
    await servicer.close()


async def test_a_deadline_passes_while_a_target_is_looked_for() -> None:
    async with serve(Nowhere(), lease_timeout_s=60) as served:
        call = served.stub.Generate(Request(text="x", deadline_ms=200))
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await within(call.read())
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_empty_pool_is_said_after_the_lease_timeout_which_is_named() -> None:
    async with serve(Nowhere(), lease_timeout_s=0.1) as served:
        with pytest.raises(Unavailable, match=r"0\.1 s \(lease_timeout_s\)"):
            await within(served.client.complete("x"))
        with pytest.raises(Unavailable, match="lease_timeout_s"):
            await within(served.client.get_model_info())
        assert (await within(served.client.status())).targets == ()


async def test_the_limit_on_requests_is_named_and_never_passed() -> None:
    async with gateway(endless(1), max_requests=2) as served:
        held = [served.client.generate("x") for _ in range(2)]
        for stream in held:
            await within(anext(stream))
        for _ in range(3):
            with pytest.raises(Overloaded, match="max_requests: all 2 places"):
                await within(served.client.complete("x"))
        assert len(served.targets[0].requests) == 2
        await held[0].aclose()
        await until(lambda: served.server.servicer.requests == 1)
        async with aclosing(served.client.generate("x")) as stream:
            await within(anext(stream))
        await held[1].aclose()


class BlockingTokenizer(ByteTokenizer):
    """Long text takes until the test says so, in whichever thread it is."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def encode(self, text: str) -> list[int]:
        if len(text) > 1000:
            self.entered.set()
            assert self.go_on.wait(30)
        return super().encode(text)


async def test_long_prompts_are_tokenised_beside_the_event_loop() -> None:
    tokenizer = BlockingTokenizer()
    async with gateway(says([97]), tokenizer=tokenizer, inline_prompt_bytes=100) as served:
        long = asyncio.ensure_future(served.client.complete("y" * 1001))
        assert await asyncio.to_thread(tokenizer.entered.wait, 30)
        assert (await within(served.client.complete("short"))).text == "a"
        assert not long.done()
        tokenizer.go_on.set()
        assert (await within(long)).finish.usage.prompt_tokens == 1001


async def test_a_deadline_passes_while_a_prompt_is_tokenised() -> None:
    tokenizer = BlockingTokenizer()
    async with gateway(says([97]), tokenizer=tokenizer, inline_prompt_bytes=100) as served:
        call = served.stub.Generate(Request(text="y" * 1001, deadline_ms=200))
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await within(call.read())
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        tokenizer.go_on.set()
        assert not served.targets[0].requests


async def test_a_five_megabyte_prompt_is_refused_with_the_limit_named() -> None:
    async with gateway(says([97])) as served:
        with pytest.raises(InvalidRequest, match=r"5242880 bytes.*1048576 bytes \(max_prompt_bytes\)"):
            await within(served.client.complete("x" * (5 << 20)))
        assert (await within(served.client.complete("x"))).text == "a"


async def test_a_five_megabyte_prompt_is_served_where_the_limit_allows_it() -> None:
    info = model(context_length=8 << 20)
    async with gateway(says([97]), info=info, max_prompt_bytes=8 << 20) as served:
        reply = await within(served.client.complete("x" * (5 << 20)))
        assert reply.finish.usage.prompt_tokens == 5 << 20
        assert len(served.targets[0].requests[0].prompt_tokens) == 4 * (5 << 20)


async def test_the_earliest_deadline_counts() -> None:
    now = [100.0]
    deadline = Deadline.earliest(5.0, None, 3.0, clock=lambda: now[0])
    assert deadline.left_s() == 3.0
    assert deadline.at_most(1.0) == 1.0
    now[0] = 103.0
    with pytest.raises(TooLate, match="3 s"):
        deadline.left_s()
    assert Deadline.earliest(None, None).left_s() is None
