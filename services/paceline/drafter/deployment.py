"""The drafter at the Ray edge: a Serve replica around a DrafterServer."""

from __future__ import annotations

from typing import Any

from paceline.drafter.config import DrafterConfig
from paceline.replicas import Listening, listen_on, use_threads


class DrafterReplica:
    """Serve calls `lease` and the health check; trees go over the replica's own data plane."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: DrafterConfig, data_plane: Listening, threads: int, drain_s: float
    ) -> None:
        """Starts the data plane on the event loop that runs this, and loads the proposer."""
        use_threads(threads, "the drafter")
        host, port = listen_on(data_plane)
        self._drain_s = drain_s
        self._server = self.make_server(settings.model_copy(update={"bind_host": host, "port": port}))
        self._address = await self._server.start()

    def make_server(self, settings: DrafterConfig) -> Any:
        """The server of this replica, not started."""
        from paceline.drafter.server import DrafterServer

        return DrafterServer(settings)

    async def lease(self) -> dict[str, str]:
        """Address and incarnation, for targets that look for a drafter. The stream they open is the lease."""
        return {"address": self._address, "incarnation": self._server.incarnation}

    def record_replica_metadata(self) -> dict[str, str]:
        """Tells Serve's routers where this replica's data plane is."""
        return {"address": self._address, "incarnation": self._server.incarnation}

    async def check_health(self) -> None:
        """Raises if the drafter makes no progress; Serve then replaces the replica."""
        self._server.healthy()

    async def __del__(self) -> None:
        """Ends the streams so that targets look elsewhere, then the server. Serve awaits it on a planned end."""
        server = getattr(self, "_server", None)  # absent if the start failed
        if server is not None:
            await server.stop(self._drain_s)
