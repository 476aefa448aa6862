"""The gateway at the Ray edge: a Serve ingress replica around an InferenceServicer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from paceline.errors import PacelineError
from paceline.gateway.config import GatewayConfig
from paceline.gateway.directory import TargetDirectory, TargetLease
from paceline.gateway.edges import ServeContext, ServeEdge
from paceline.gateway.listener import DirectListener, load_tokenizer_for
from paceline.gateway.servicer import InferenceServicer
from paceline.replicas import lease, set_library_threads
from paceline.rpc.status import status_of
from paceline.v1 import inference_pb2

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from paceline.runtime.tokenizer import TextTokenizer


class HandleDirectory:
    """Finds targets through the Serve handle of their deployment."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def lease(self) -> TargetLease:
        """A target that answers now. Raises Unavailable if none does."""
        found = await lease(self._handle, "target")
        return TargetLease(found.address, found.incarnation)


class GatewayReplica:
    """Serve's ingress routes by method name: the gRPC methods, and `__call__` for HTTP."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: GatewayConfig, threads: int, drain_s: float, targets: Any
    ) -> None:
        """Loads the tokenizer, and starts the direct listener if one is configured."""
        set_library_threads(threads, "the gateway")
        self._drain_s = drain_s
        directory = HandleDirectory(targets)
        self._servicer = InferenceServicer(directory, await self.load_tokenizer(settings, directory), settings)
        self._edge = ServeEdge(self._servicer)
        self._listener: DirectListener | None = None
        if settings.listener is not None:
            self._listener = DirectListener(self._servicer, settings.listener)
            await self._listener.start()

    async def load_tokenizer(self, settings: GatewayConfig, directory: TargetDirectory) -> TextTokenizer:
        """The tokenizer of the served model. A gateway computes nothing that needs torch."""
        from paceline.runtime.without_torch import import_without_torch

        import_without_torch()
        return await load_tokenizer_for(settings, directory)

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, grpc_context: ServeContext
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """Streams a reply."""
        replies = self._edge.generate(request, grpc_context)
        try:
            async for response in replies:
                yield response
        finally:
            await replies.aclose()  # a cancelled call ends the target's work before anything else

    async def GetModelInfo(  # noqa: N802
        self, request: inference_pb2.GetModelInfoRequest, grpc_context: ServeContext
    ) -> inference_pb2.GetModelInfoResponse:
        """Describes the model."""
        return await self._edge.get_model_info(request, grpc_context)

    async def GetStatus(  # noqa: N802
        self, request: inference_pb2.GetStatusRequest, grpc_context: ServeContext
    ) -> inference_pb2.GetStatusResponse:
        """Reports live state."""
        return await self._edge.get_status(request, grpc_context)

    async def __call__(self, request: Request) -> Response:
        """HTTP: `GET /` describes the model; everything else is not there yet and says so."""
        from starlette.responses import JSONResponse

        if request.method not in ("GET", "HEAD") or request.url.path != "/":
            text = (
                "not implemented yet: this server speaks gRPC (paceline.v1.InferenceService); GET / describes the model"
            )
            return JSONResponse({"error": text}, status_code=501)
        try:
            info = await self._servicer.get_model_info(inference_pb2.GetModelInfoRequest())
        except PacelineError as error:
            return JSONResponse({"error": status_of(error)[1]}, status_code=503)
        return JSONResponse(MessageToDict(info, preserving_proto_field_name=True))

    async def __del__(self) -> None:
        """Lets calls of the direct listener end within the drain time. Serve drains its own and awaits this."""
        listener, servicer = getattr(self, "_listener", None), getattr(self, "_servicer", None)
        if listener is not None:
            await listener.stop(self._drain_s)
        if servicer is not None:  # absent if the start failed
            await servicer.close()
