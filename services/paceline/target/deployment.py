"""The target at the Ray edge: a Serve replica around a TargetServer."""

from __future__ import annotations

from typing import Any

from paceline.replicas import Listening, lease, listen_on, use_threads
from paceline.target.config import TargetConfig
from paceline.target.directory import DrafterDirectory, DrafterLease


class HandleDirectory:
    """Finds drafters through the Serve handle of their deployment."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def lease(self) -> DrafterLease | None:
        """A drafter that answers now. Raises Unavailable if none does; the link logs it and tries again."""
        found = await lease(self._handle, "drafter")
        return DrafterLease(found.address, found.incarnation)


class TargetReplica:
    """Serve calls `lease` and the health check; tokens go over the replica's own data plane."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: TargetConfig, data_plane: Listening, threads: int, drain_s: float, drafters: Any | None
    ) -> None:
        """Loads the model and starts the data plane on the event loop that runs this. `drafters` None: no drafts."""
        use_threads(threads, "the target")
        host, port = listen_on(data_plane)
        self._drain_s = drain_s
        directory = None if drafters is None else HandleDirectory(drafters)
        self._server = self.make_server(settings.model_copy(update={"bind_host": host, "port": port}), directory)
        self._address = await self._server.start()

    def make_server(self, settings: TargetConfig, directory: DrafterDirectory | None) -> Any:
        """The server of this replica, not started."""
        from paceline.target.server import TargetServer

        return TargetServer(settings, directory)

    async def lease(self) -> dict[str, str]:
        """Address and incarnation, for gateways that look for a target. The stream they open is the lease."""
        return {"address": self._address, "incarnation": self._server.incarnation}

    def record_replica_metadata(self) -> dict[str, str]:
        """Tells Serve's routers where this replica's data plane is."""
        return {"address": self._address, "incarnation": self._server.incarnation}

    async def check_health(self) -> None:
        """Raises if the engine makes no progress while work is pending; Serve then replaces the replica."""
        self._server.healthy()

    async def __del__(self) -> None:
        """Lets streams end within the drain time, then stops. Serve awaits it on a planned end."""
        server = getattr(self, "_server", None)  # absent if the start failed
        if server is not None:
            await server.stop(self._drain_s)
