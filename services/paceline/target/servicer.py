"""The gRPC edge of the target: translates, and ends sessions whose stream has ended."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc.aio

from paceline.errors import DeadlineExceeded
from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.status import abort
from paceline.rpc.unknown_fields import refuse_unknown
from paceline.target.decode_request import RequestLimits, resolve
from paceline.target.engine import TargetEngine
from paceline.target.finish import Finish, FinishReason
from paceline.target.outbox import Outbox
from paceline.target.reply import Piece, ReplyStream
from paceline.target.status import StatusReport
from paceline.target.trace import trace_of
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc

log = logging.getLogger(__name__)

_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """TargetService over an engine. Runs on the event loop."""

    def __init__(
        self,
        engine: TargetEngine,
        limits: RequestLimits,
        report: StatusReport,
        *,
        outbox: Outbox,
        max_unread_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the engine's."""
        self._engine, self._limits, self._report = engine, limits, report
        self._outbox, self._max_unread, self._clock = outbox, max_unread_tokens, clock

    async def Decode(  # noqa: N802 - named by the proto
        self, request: target_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[target_pb2.DecodeResponse]:
        """One session, from its tokens to its finish. The end of the stream, however it comes, frees the session."""
        session: int | None = None
        try:
            left_s = context.time_remaining()
            if left_s is not None and left_s <= 0:
                raise DeadlineExceeded("the deadline had passed when the request came")
            wanted = resolve(request, self._limits, None if left_s is None else self._clock() + left_s)
            reply = ReplyStream(self._outbox, self._max_unread, lambda: self._resume(session))
            session = self._engine.submit(wanted, reply)
            context.add_done_callback(functools.partial(self._ended, session))
            while True:
                piece = await reply.next()
                if isinstance(piece, Finish):
                    yield _finish(piece)
                    return
                yield _piece(piece, with_rounds=wanted.trace)
        except Exception as error:  # becomes a status; cancellation is no Exception and goes on
            await abort(context, error)

    async def GetTargetInfo(  # noqa: N802
        self, request: target_pb2.GetTargetInfoRequest, context: Context
    ) -> target_pb2.GetTargetInfoResponse:
        """Describes the model."""
        try:
            refuse_unknown(request)
            return await self._report.info()
        except Exception as error:
            await abort(context, error)
            raise

    async def GetTargetStatus(  # noqa: N802
        self, request: target_pb2.GetTargetStatusRequest, context: Context
    ) -> target_pb2.GetTargetStatusResponse:
        """Reports live state."""
        try:
            refuse_unknown(request)
            return await self._report.status()
        except Exception as error:
            await abort(context, error)
            raise

    def _ended(self, session: int, _: object) -> None:
        self._engine.cancel(session)  # a session that has finished is not known any more

    def _resume(self, session: int | None) -> None:
        if session is not None:
            self._engine.resume(session)


def _piece(piece: Piece, *, with_rounds: bool) -> target_pb2.DecodeResponse:
    newest = piece.rounds[-1]
    return target_pb2.DecodeResponse(
        tokens=ints_to_bytes(piece.tokens),
        deviation_spent=newest.deviation_spent,
        relaxed_tokens=newest.relaxed_tokens,
        rounds=[trace_of(record) for record in piece.rounds] if with_rounds else (),
    )


def _finish(finish: Finish) -> target_pb2.DecodeResponse:
    stats = finish.stats
    return target_pb2.DecodeResponse(
        finish=target_pb2.TargetFinish(
            reason=_REASONS[finish.reason],
            stop_match=finish.stop_match,
            usage=common_pb2.Usage(prompt_tokens=finish.prompt_tokens, completion_tokens=finish.completion_tokens),
            speculation=common_pb2.SpeculationStats(
                rounds=stats.rounds,
                drafted=stats.drafted,
                accepted=stats.accepted,
                fallbacks=dict(stats.fallbacks),
                relaxed_tokens=stats.relaxed,
                deviation_spent=stats.deviation_spent,
                limits_applied=dict(stats.limits),
                selections=dict(stats.selections),
                budgets=dict(stats.budgets),
                row_passes=stats.row_passes,
                row_cache_hits=stats.row_hits,
                tokens_held_back=stats.held_back,
                strength=stats.strength,
                verification="nucleus" if stats.nucleus else "exact",
            ),
            timings=common_pb2.Timings(ttft_s=finish.ttft_s, total_s=finish.total_s),
        )
    )
