"""The gateway's own listener: TLS, health, reflection and back-pressure, which Ray Serve's ingress lacks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio

from paceline.errors import DeadlineExceeded, Unavailable
from paceline.gateway.config import GatewayConfig, ListenerConfig
from paceline.gateway.deadline import Deadline
from paceline.gateway.directory import TargetDirectory
from paceline.gateway.edges import AioEdge
from paceline.gateway.servicer import InferenceServicer
from paceline.gateway.targets import Targets
from paceline.rpc.server import DataPlaneServer
from paceline.v1 import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from paceline.runtime.tokenizer import TextTokenizer

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ASK_AGAIN_S = 0.5  # between tries to reach the first target


class DirectListener:
    """A listener around a servicer that may serve other edges too."""

    def __init__(self, servicer: InferenceServicer, config: ListenerConfig) -> None:
        def add(server: grpc.aio.Server) -> None:
            inference_pb2_grpc.add_InferenceServiceServicer_to_server(AioEdge(servicer), server)

        self._server = DataPlaneServer((SERVICE,), add, host=config.bind_host, port=config.port, tls=config.tls)

    async def start(self) -> str:
        """Listens, and returns the address. Raises Unavailable, naming it, if the port is taken."""
        return await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, and ends running ones after `grace_s` seconds."""
        await self._server.stop(grace_s)


class GatewayServer:
    """A whole gateway without Ray: a servicer behind a listener of its own."""

    def __init__(
        self, config: GatewayConfig, directory: TargetDirectory, tokenizer: TextTokenizer | None = None
    ) -> None:
        """`tokenizer` None loads the configured model's, or the target's where none is configured."""
        self._config, self._directory, self._tokenizer = config, directory, tokenizer
        self._servicer: InferenceServicer | None = None
        self._listener: DirectListener | None = None

    @property
    def servicer(self) -> InferenceServicer:
        """What answers; there from `start` to `stop`."""
        if self._servicer is None:
            raise RuntimeError("the gateway is not started")
        return self._servicer

    async def start(self) -> str:
        """Loads the tokenizer, listens, and returns the address.

        Raises ModelNotFound or ModelDamaged for a tokenizer that cannot be loaded, Unavailable for a port that is
        taken.
        """
        tokenizer = self._tokenizer or await load_tokenizer_for(self._config, self._directory)
        servicer = InferenceServicer(self._directory, tokenizer, self._config)
        listener = DirectListener(servicer, self._config.listener or ListenerConfig())
        try:
            address = await listener.start()
        except BaseException:
            await servicer.close()
            raise
        self._servicer, self._listener = servicer, listener
        return address

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, ends running ones after `grace_s` seconds, and lets go of the targets."""
        if self._listener is not None:
            await self._listener.stop(grace_s)
        if self._servicer is not None:
            await self._servicer.close()
        self._servicer = self._listener = None


async def load_tokenizer_for(config: GatewayConfig, directory: TargetDirectory) -> TextTokenizer:
    """The tokenizer of the configured model; where none is configured, of the model that the targets serve.

    Waits for a target as long as `start_timeout_s`, since all start together. Raises Unavailable if none came, else as
    the model store and the tokenizer do.
    """
    from paceline.runtime.store import default_store
    from paceline.runtime.tokenizer import load_tokenizer

    name = config.model or await _served_model(config, directory)
    return await asyncio.to_thread(lambda: load_tokenizer(default_store().resolve(name)))


async def _served_model(config: GatewayConfig, directory: TargetDirectory) -> str:
    targets = Targets(directory, config, fingerprint=None)
    deadline = Deadline(config.start_timeout_s)
    missing = "none answered"
    try:
        while True:
            try:
                return (await targets.describe(deadline)).model
            except Unavailable as error:
                missing = str(error)
            await asyncio.sleep(deadline.at_most(ASK_AGAIN_S))
    except DeadlineExceeded:
        limit = f"{config.start_timeout_s:g} s (start_timeout_s)"
        raise Unavailable(f"no target told its model within {limit}: {missing}") from None
    finally:
        await targets.close()
