"""Where targets are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TargetLease:
    """A target to call. The stream to it is what holds its session, not this value."""

    address: str  # host:port of its data plane
    incarnation: str  # changes whenever the replica restarts


class TargetDirectory(Protocol):
    """Picks targets. Deployments ask Ray Serve; tests answer themselves."""

    async def lease(self) -> TargetLease:
        """A target that should be alive; callers limit the time it may take. Raises Unavailable if there is none."""
        ...
