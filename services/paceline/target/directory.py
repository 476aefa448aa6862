"""Where drafters are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DrafterLease:
    """A drafter to connect to. The stream to it is what holds its slots, not this value."""

    address: str  # host:port of its data plane
    incarnation: str  # changes whenever the replica restarts


class DrafterDirectory(Protocol):
    """Picks drafters. Deployments ask Ray Serve; tests answer themselves."""

    async def lease(self) -> DrafterLease | None:
        """A drafter that should be alive, or None if there is none now. May take its time; callers set a limit."""
