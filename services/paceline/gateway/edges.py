"""The two gRPC edges of the servicer: our own grpc.aio listener and Ray Serve's ingress. They translate only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from paceline.gateway.servicer import InferenceServicer
from paceline.rpc.status import abort, status_of
from paceline.v1 import inference_pb2, inference_pb2_grpc

Message = TypeVar("Message")


class AioEdge(inference_pb2_grpc.InferenceServiceServicer):
    """For grpc.aio servers. Writing waits for the client, and so holds the target back."""

    def __init__(self, servicer: InferenceServicer) -> None:
        self._servicer = servicer

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> None:  # noqa: N802
        """Streams a reply."""
        replies = self._servicer.generate(
            request, request_id=_request_id(context.invocation_metadata()), time_left_s=context.time_remaining()
        )
        try:
            async with aclosing(replies):  # a cancelled call ends the target's work before anything else
                async for response in replies:
                    await context.write(response)
        except grpc.aio.BaseError:
            return  # the connection is gone, and with it whoever an error could be told to
        except Exception as error:
            await abort(context, error)

    async def GetModelInfo(  # noqa: N802
        self, request: inference_pb2.GetModelInfoRequest, context: Any
    ) -> inference_pb2.GetModelInfoResponse:
        """Describes the model."""
        return await self._unary(self._servicer.get_model_info(request, time_left_s=context.time_remaining()), context)

    async def GetStatus(  # noqa: N802
        self, request: inference_pb2.GetStatusRequest, context: Any
    ) -> inference_pb2.GetStatusResponse:
        """Reports live state."""
        return await self._unary(self._servicer.get_status(request, time_left_s=context.time_remaining()), context)

    async def _unary(self, answer: Awaitable[Message], context: Any) -> Message:
        try:
            return await answer
        except Exception as error:
            await abort(context, error)
            raise


class ServeContext(Protocol):
    """What Ray Serve hands to ingress methods as `grpc_context`."""

    def set_code(self, code: grpc.StatusCode) -> None:
        """Status of the call."""
        ...

    def set_details(self, details: str) -> None:
        """Its text."""
        ...

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """What the client sent beside the message."""
        ...


class ServeEdge:
    """For Ray Serve's ingress, behind a deployment whose methods have the RPCs' names.

    Errors set a status and return: raised, they would reach the client as a traceback.
    """

    def __init__(self, servicer: InferenceServicer) -> None:
        self._servicer = servicer

    async def generate(
        self, request: inference_pb2.GenerateRequest, grpc_context: ServeContext
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Streams a reply. The ingress hides the call's deadline; `deadline_ms` stands in for it."""
        replies = self._servicer.generate(request, request_id=_request_id(grpc_context.invocation_metadata()))
        try:
            async with aclosing(replies):
                async for response in replies:
                    yield response
        except Exception as error:
            _report(grpc_context, error)

    async def get_model_info(
        self, request: inference_pb2.GetModelInfoRequest, grpc_context: ServeContext
    ) -> inference_pb2.GetModelInfoResponse:
        """Describes the model."""
        try:
            return await self._servicer.get_model_info(request)
        except Exception as error:
            _report(grpc_context, error)
            return inference_pb2.GetModelInfoResponse()

    async def get_status(
        self, request: inference_pb2.GetStatusRequest, grpc_context: ServeContext
    ) -> inference_pb2.GetStatusResponse:
        """Reports live state."""
        try:
            return await self._servicer.get_status(request)
        except Exception as error:
            _report(grpc_context, error)
            return inference_pb2.GetStatusResponse()


def _report(context: ServeContext, error: Exception) -> None:
    code, details = status_of(error)
    context.set_code(code)
    context.set_details(details)


def _request_id(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The client's name for the call, for logs; empty if it gave none that can be logged."""
    for key, value in metadata or ():
        if key == "request_id" and isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable():
            return value
    return ""
