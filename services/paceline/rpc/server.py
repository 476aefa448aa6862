"""A grpc.aio listener with health, reflection and limits: the data plane of every replica, and the direct listener."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

import grpc.aio
from grpc_health.v1 import health as health_names
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from paceline.errors import Unavailable
from paceline.rpc.channels import SERVER_OPTIONS, host_port
from paceline.rpc.tls import TlsConfig


class DataPlaneServer:
    """One listener. It belongs to the event loop that starts it."""

    def __init__(
        self,
        services: Sequence[str],
        add_servicers: Callable[[grpc.aio.Server], None],
        *,
        host: str,
        port: int,
        tls: TlsConfig | None = None,
    ) -> None:
        """Takes what to serve.

        Args:
            services: full names, for health and reflection.
            add_servicers: registers the servicers.
            host: address to listen on, IPv4, IPv6 or a name.
            port: 0 picks a free one.
            tls: None listens in clear text.
        """
        self._services, self._add_servicers = tuple(services), add_servicers
        self._host, self._port, self._tls = host, port, tls
        self._server: grpc.aio.Server | None = None
        self._health = health.HealthServicer()

    async def start(self) -> str:
        """Listens, and returns the address. Raises Unavailable, naming it, if the port is taken."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self._add_servicers(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*self._services, health_names.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        address = host_port(self._host, self._port)
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: {_why(self._host, self._port)}") from error
        await server.start()
        self._server = server
        await self.set_serving(True)
        return host_port(self._host, port)

    async def set_serving(self, serving: bool) -> None:
        """Tells grpc.health.v1 about the whole server and each service."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._services):
            await self._health.set(name, state)

    async def stop(self, grace_s: float) -> None:
        """Reports NOT_SERVING, takes no more calls, and ends running ones after `grace_s` seconds."""
        if self._server is not None:
            await self.set_serving(False)
            await self._server.stop(grace_s)
            self._server = None


def _why(host: str, port: int) -> str:
    """The reason a bind fails, in the system's words, which gRPC keeps to its log."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host.strip("[]"), port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{error.strerror}; choose another port or end the process that holds it"
        return f"{error.strerror}; choose an address of this machine and a port you may use"
    return "the address cannot be bound"
