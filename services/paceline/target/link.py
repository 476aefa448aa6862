"""The link to a drafter: one bidirectional stream, leased, kept alive and renewed.

It carries frames and knows nothing of rounds. While no drafter is reached it tries again with growing pauses; the
engine meanwhile decodes plainly. Runs on the event loop; `send` is called in the compute thread.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc

from paceline.target.backoff import Backoff
from paceline.target.directory import DrafterDirectory, DrafterLease
from paceline.target.fallback import Fallback
from paceline.target.frames import FrameCodec
from paceline.target.outbox import Outbox
from paceline.target.port import DraftEvent, LinkDown, LinkUp, Update
from paceline.v1 import draft_pb2, draft_pb2_grpc, inference_pb2

__all__ = ["DrafterDirectory", "DrafterLease", "DrafterLink", "LinkTiming"]

log = logging.getLogger(__name__)

MAX_FRAMES = 64  # steps that may wait for a drafter that does not read
STATUS_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Limits of connecting."""

    connect_timeout_s: float  # for a lease, and for reaching its drafter
    backoff_first_s: float
    backoff_longest_s: float


@dataclass(slots=True)
class _Connection:
    """One stream and the frames on their way to it."""

    generation: int
    address: str
    stub: draft_pb2_grpc.DraftServiceStub
    frames: deque[Sequence[Update]] = field(default_factory=deque)  # compute thread appends, event loop takes
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    heard: bool = False  # something has come on it


class DrafterLink:
    """Holds at most one stream, to whatever drafter the directory names."""

    def __init__(
        self,
        directory: DrafterDirectory,
        codec: FrameCodec,
        timing: LinkTiming,
        *,
        events: Callable[[Iterable[DraftEvent]], object],
        outbox: Outbox,
        open_channel: Callable[[str], grpc.aio.Channel],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """`events` takes what the engine must know, from the event loop; `clock` is the engine's."""
        self._directory, self._codec, self._timing = directory, codec, timing
        self._events, self._outbox, self._open_channel = events, outbox, open_channel
        self._clock, self._sleep = clock, sleep
        self._backoff = Backoff(timing.backoff_first_s, timing.backoff_longest_s, random)
        self._generation = 0
        self._connection: _Connection | None = None
        self._said = ""  # the last trouble logged; the same again, try after try, is not
        self.state = "absent"  # "ready", "connecting" or "absent"

    @property
    def address(self) -> str:
        """Address of the drafter it is linked to, or ""."""
        connection = self._connection
        return connection.address if connection is not None else ""

    # -- compute thread (DraftPort) -----------------------------------------------------------------------------------

    def send(self, generation: int, updates: Sequence[Update]) -> bool:
        """Queues one frame; False if the queue is full. Frames for an earlier connection are dropped."""
        connection = self._connection
        if connection is None or connection.generation != generation:
            return True
        if len(connection.frames) >= MAX_FRAMES:
            return False
        connection.frames.append(updates)
        self._outbox.post(connection.wake.set)
        return True

    # -- event loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            lease = await self._lease()
            if lease is None:
                self.state = "absent"
                self._events([LinkDown(Fallback.ABSENT)])
            else:
                self.state = "connecting"
                await self._hold(lease)
            await self._sleep(self._backoff.next_s())

    async def drafter_status(self) -> inference_pb2.DrafterStatus | None:
        """What the drafter says of itself now; None if it does not answer soon."""
        connection = self._connection
        if connection is None:
            return None
        try:
            answer = await connection.stub.GetDrafterStatus(
                draft_pb2.GetDrafterStatusRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return None
        except asyncio.CancelledError:
            # A channel that is closed meanwhile cancels its calls; only our own cancellation goes on from here.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None
        return answer.status

    async def _lease(self) -> DrafterLease | None:
        try:
            return await asyncio.wait_for(self._directory.lease(), self._timing.connect_timeout_s)
        except Exception as error:  # whatever the directory is, serving goes on without it
            self._say(f"no drafter could be leased: {type(error).__name__}: {error}")
            return None

    async def _hold(self, lease: DrafterLease) -> None:
        """Connects and serves the stream until it ends. Never raises but for cancellation."""
        try:
            async with self._open_channel(lease.address) as channel:
                stub = draft_pb2_grpc.DraftServiceStub(channel)
                proposer = await self._suits(stub, lease)
                if proposer is not None:
                    await self._serve(stub, lease, proposer)
        except grpc.aio.AioRpcError as error:
            self._say(f"drafter {lease.address}: {error.code().name}: {error.details()}")
        except Exception:
            log.exception("drafter %s: the link broke", lease.address)

    async def _suits(self, stub: draft_pb2_grpc.DraftServiceStub, lease: DrafterLease) -> str | None:
        """Its kind of proposer; None if its tokenizer is another one."""
        answer = await stub.GetDrafterStatus(
            draft_pb2.GetDrafterStatusRequest(), timeout=self._timing.connect_timeout_s, wait_for_ready=True
        )
        theirs, ours = answer.tokenizer_fingerprint, self._codec.tokenizer_fingerprint
        if not theirs or theirs == ours:
            return answer.status.proposer
        self._say(
            f"drafter {lease.address} has another tokenizer (fingerprint {theirs[:12]}, ours {ours[:12]});"
            " start it with the target's tokenizer"
        )
        self._events([LinkDown(Fallback.TOKENIZER_MISMATCH)])
        return None

    async def _serve(self, stub: draft_pb2_grpc.DraftServiceStub, lease: DrafterLease, proposer: str) -> None:
        call = stub.Draft()
        self._generation += 1
        connection = _Connection(self._generation, lease.address, stub)
        self._connection, self.state = connection, "ready"
        self._events([LinkUp(connection.generation, proposer)])
        self._say("")
        log.info("drafter %s: linked", lease.address)
        tasks = [asyncio.create_task(self._write(connection, call)), asyncio.create_task(self._read(connection, call))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            log.info("drafter %s: the stream ended", lease.address)
        finally:
            self._connection, self.state = None, "connecting"
            self._events([LinkDown(Fallback.LOST)])
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, connection: _Connection, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await connection.wake.wait()
            connection.wake.clear()
            while connection.frames:
                await call.write(self._codec.request(connection.frames.popleft()))

    async def _read(self, connection: _Connection, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            response = await call.read()
            if response is grpc.aio.EOF:
                return
            events = self._codec.events(response, self._clock())
            self._events(events)
            if not connection.heard:
                connection.heard = True
                self._backoff.reset()

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            log.warning("%s", trouble)
        self._said = trouble
