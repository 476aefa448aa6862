"""The gRPC edge of the drafter: frames in, frames out, nothing computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from paceline.drafter.engine import DrafterEngine
from paceline.drafter.frames import response_of, updates_of
from paceline.drafter.fused import FusedProposer, MemberState
from paceline.drafter.messages import Reply
from paceline.drafter.outbox import Outbox
from paceline.drafter.proposer import Proposer
from paceline.errors import PacelineError, Unavailable
from paceline.rpc.status import abort
from paceline.rpc.unknown_fields import refuse_unknown
from paceline.v1 import draft_pb2, draft_pb2_grpc, inference_pb2

_DRAINING = "the drafter is draining; ask for another one"


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Serves DraftService. The stream is the lease: when it ends, its sessions are closed."""

    def __init__(self, engine: DrafterEngine, proposer: Proposer, incarnation: str) -> None:
        self._engine, self._proposer, self._incarnation = engine, proposer, incarnation
        self._draining = False
        self._outboxes: dict[int, Outbox] = {}  # by stream
        self._next_stream = 1
        self.address = ""  # set once the listener has one

    @property
    def streams(self) -> int:
        """Open streams."""
        return len(self._outboxes)

    def drain(self) -> None:
        """Ends every stream and refuses new ones, so that targets look for another drafter."""
        self._draining = True
        for outbox in self._outboxes.values():
            outbox.end(Unavailable(_DRAINING))

    async def Draft(  # noqa: N802 - the name of the method on the wire
        self,
        request_iterator: AsyncIterator[draft_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """One target's stream.

        It writes rather than yields: a generator that waits to be resumed would see its client's end only once it is
        collected, and the sessions would be held until then.
        """
        if self._draining:
            await abort(context, Unavailable(_DRAINING))
        stream, self._next_stream = self._next_stream, self._next_stream + 1
        outbox = self._outboxes[stream] = Outbox()
        reader = asyncio.create_task(self._read(stream, request_iterator, outbox))
        try:
            while replies := await outbox.take():
                await context.write(response_of(replies))
        except Exception as error:
            await abort(context, error)
        finally:
            del self._outboxes[stream]
            self._engine.end_stream(stream)
            reader.cancel()

    async def GetDrafterStatus(  # noqa: N802 - the name of the method on the wire
        self, request: draft_pb2.GetDrafterStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> draft_pb2.GetDrafterStatusResponse:
        """Live state."""
        try:
            refuse_unknown(request)
        except PacelineError as error:
            await abort(context, error)
        return draft_pb2.GetDrafterStatusResponse(
            status=inference_pb2.DrafterStatus(
                address=self.address,
                incarnation=self._incarnation,
                proposer=self._proposer.name,
                sessions=self._engine.sessions,
                streams=self.streams,
                members=[_member(each) for each in self._members()],
            ),
            tokenizer_fingerprint=self._proposer.tokenizer_fingerprint,
            context_length=self._proposer.context_length,
        )

    def _members(self) -> list[MemberState]:
        return self._proposer.members() if isinstance(self._proposer, FusedProposer) else []

    async def _read(self, stream: int, frames: AsyncIterator[draft_pb2.DraftRequest], outbox: Outbox) -> None:
        loop = asyncio.get_running_loop()

        def deliver(replies: list[Reply]) -> None:
            loop.call_soon_threadsafe(outbox.put, replies)

        try:
            async for frame in frames:
                updates, refused = updates_of(frame)
                if refused:
                    outbox.put(refused)
                self._engine.submit(stream, updates, deliver)
        except Exception as error:
            outbox.end(error)
        finally:
            outbox.end()  # a dead peer may also be told by a cancellation


def _member(state: MemberState) -> inference_pb2.MemberState:
    return inference_pb2.MemberState(
        proposer=state.proposer,
        sessions=state.sessions,
        passes=state.passes,
        left=state.left,
        trust=[
            inference_pb2.MemberTrust(
                warmth=warmth,
                depth=line.depth,
                contexts=line.contexts,
                promised=line.promised,
                right=line.right,
            )
            for warmth, line in state.trust
        ],
    )
