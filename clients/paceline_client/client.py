"""The client: one event loop, one channel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Self, TypeVar, Unpack

import grpc
import grpc.aio

from paceline.v1 import inference_pb2, inference_pb2_grpc
from paceline_client.address import DEFAULT_ADDRESS
from paceline_client.connection import MAX_MESSAGE_BYTES, RetryPolicy, TlsOptions, open_channel
from paceline_client.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    ServerFault,
    Unavailable,
    from_status,
)
from paceline_client.replies import Event, Finish, Replies, Reply, event_of
from paceline_client.request import GenerateFields, Prompt, request_of
from paceline_client.service import ModelInfo, Status, model_info_of, status_of

T = TypeVar("T")


class AsyncClient:
    """Talks to one Paceline server. Use it on one event loop, and close it there (`async with`, or `close`)."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: TlsOptions | None = None,
        application: str | None = None,
        retry: RetryPolicy | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the address; nothing is connected before the first call.

        Args:
            address: HOST, HOST:PORT, an IPv6 address, [IPv6]:PORT, dns:///HOST:PORT or unix:PATH; default port 9000.
            tls: certificates; None speaks without TLS.
            application: Ray Serve application, where the server runs several.
            retry: tries before the first message of a reply has come; None for the default.
            max_message_bytes: largest message either way.
            keepalive_s: seconds of silence after which the connection is pinged; None for never.
            clock: monotonic seconds.
        """
        self._address, self._tls = address, tls
        self._retry = retry or RetryPolicy()
        self._max_message_bytes, self._keepalive_s = max_message_bytes, keepalive_s
        self._clock = clock
        self._metadata = (("application", application),) if application else ()
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and every call on it."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Unpack[GenerateFields]
    ) -> AsyncGenerator[Event, None]:
        """The reply as it comes: Deltas, then exactly one Finish. Leaving the loop and closing it ends the call.

        With n above 1 the replies come side by side, each event with its reply's index, and one Finish for each.

        Args:
            prompt: a string (raw text), a Chat or Tokens.
            timeout_s: seconds for the whole reply; the server stops then too. None: no limit.
            fields: see GenerateFields.

        Raises a ClientError by kind (see paceline_client.errors).
        """
        request = request_of(prompt, fields)
        ends = None if timeout_s is None else self._clock() + timeout_s
        for attempt in range(1, self._retry.attempts + 1):
            left_s = self._left(ends, timeout_s)
            if left_s is not None:
                request.deadline_ms = min(max(1, round(left_s * 1e3)), 2**32 - 1)
            try:
                async with aclosing(self._stream(request, left_s)) as events:
                    async for event in events:
                        yield event
                return
            except Unavailable as error:
                if not error.retryable or attempt == self._retry.attempts:
                    raise
            await self._pause(attempt, ends)

    async def complete(
        self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Unpack[GenerateFields]
    ) -> Reply:
        """The whole reply at once; arguments and errors as of `generate`, but for n: `complete_all` gives several."""
        if fields.get("n") not in (None, 1):
            raise InvalidRequest(f"n: got {fields['n']!r:.80}, allowed: 1 or absent. Use complete_all for several.")
        return (await self.complete_all(prompt, timeout_s=timeout_s, **fields))[0]

    async def complete_all(
        self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Unpack[GenerateFields]
    ) -> tuple[Reply, ...]:
        """All n whole replies at once, by index; arguments and errors as of `generate`."""
        growing = Replies()
        async with aclosing(self.generate(prompt, timeout_s=timeout_s, **fields)) as events:
            whole = [reply async for event in events if (reply := growing.add(event)) is not None]
        return tuple(sorted(whole, key=lambda reply: reply.finish.index))

    async def get_model_info(self, *, timeout_s: float | None = 10.0) -> ModelInfo:
        """The served model, its limits and defaults."""
        request = inference_pb2.GetModelInfoRequest()
        return model_info_of(
            await self._unary(lambda stub, left_s: stub.GetModelInfo(request, **self._options(left_s)), timeout_s)
        )

    async def status(self, *, timeout_s: float | None = 10.0) -> Status:
        """Live state of the service."""
        request = inference_pb2.GetStatusRequest()
        return status_of(
            await self._unary(lambda stub, left_s: stub.GetStatus(request, **self._options(left_s)), timeout_s)
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    def _stub(self) -> inference_pb2_grpc.InferenceServiceStub:
        if self._channel is None:
            self._channel = open_channel(
                self._address,
                self._tls,
                max_message_bytes=self._max_message_bytes,
                keepalive_s=self._keepalive_s,
            )
        return inference_pb2_grpc.InferenceServiceStub(self._channel)

    def _options(self, timeout_s: float | None) -> dict[str, object]:
        return {"timeout": timeout_s, "metadata": self._metadata}

    async def _stream(
        self, request: inference_pb2.GenerateRequest, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        """One try of a reply."""
        call = self._stub().Generate(request, **self._options(timeout_s))
        delivered, unfinished = False, request.n if request.HasField("n") else 1
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                event = event_of(response)
                if event is not None:
                    delivered = True
                    unfinished -= isinstance(event, Finish)
                    yield event
        except grpc.aio.AioRpcError as error:
            raise self._readable(error, delivered) from None
        finally:
            call.cancel()  # frees the server's session if the caller left early; an ended call does not mind
        if unfinished:
            raise ServerFault("the reply ended without a finish")

    async def _unary(
        self,
        call: Callable[[inference_pb2_grpc.InferenceServiceStub, float | None], Awaitable[T]],
        timeout_s: float | None,
    ) -> T:
        ends = None if timeout_s is None else self._clock() + timeout_s
        attempt = 1
        while True:
            try:
                return await call(self._stub(), self._left(ends, timeout_s))
            except grpc.aio.AioRpcError as error:
                known = self._readable(error, delivered=False)
                if not isinstance(known, Unavailable) or attempt >= self._retry.attempts:
                    raise known from None
            await self._pause(attempt, ends)
            attempt += 1

    def _left(self, ends: float | None, timeout_s: float | None) -> float | None:
        if ends is None:
            return None
        left_s = ends - self._clock()
        if left_s <= 0:
            raise DeadlineExceeded(f"timeout_s: {timeout_s:g} s passed")
        return left_s

    async def _pause(self, attempt: int, ends: float | None) -> None:
        pause_s = self._retry.first_pause_s * 2 ** (attempt - 1)
        await asyncio.sleep(pause_s if ends is None else max(0.0, min(pause_s, ends - self._clock())))

    def _readable(self, error: grpc.aio.AioRpcError, delivered: bool) -> ClientError:
        known = from_status(error.code(), error.details(), delivered=delivered)
        if isinstance(known, Unavailable) and not delivered:
            return Unavailable(f"no answer from {self._address}: {known}", known.code)
        return known
