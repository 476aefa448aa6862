"""What comes into the compute thread."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.target.port import DraftEvent
from paceline.target.request import SessionRequest
from paceline.target.session import Sink


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """A request that has a seat."""

    session: int
    request: SessionRequest
    sink: Sink
    at: float  # when it was accepted, seconds on the engine's clock


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody reads the session's reply any more."""

    session: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The reader of a paused session has caught up."""

    session: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the loop."""

    reason: str  # what sessions that still run are told


EngineEvent = Submit | Cancel | Resume | Stop | DraftEvent
