"""Tokens of one reply from whichever target lives: none lost, none twice.

Where a target dies, another one gets the prompt, the tokens delivered so far, what their relaxations have cost and the
same seed, and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import grpc
import grpc.aio

from paceline.errors import Overloaded, PacelineError, Unavailable
from paceline.gateway.config import GatewayConfig
from paceline.gateway.deadline import Deadline
from paceline.gateway.directory import TargetLease
from paceline.gateway.reply import Reply
from paceline.gateway.requests import Resolved
from paceline.gateway.targets import Target, Targets
from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.rpc.status import from_rpc_error
from paceline.v1 import inference_pb2, target_pb2

__all__ = ["Relay", "TargetLease"]

log = logging.getLogger(__name__)


class Relay:
    """One reply's way from the targets."""

    def __init__(
        self, targets: Targets, config: GatewayConfig, resolved: Resolved, deadline: Deadline, request_id: str
    ) -> None:
        """`request_id` names the reply in logs."""
        self._targets, self._config = targets, config
        self._resolved, self._deadline, self._request_id = resolved, deadline, request_id
        self._moves = 0  # in a row, without a new token

    async def run(
        self, first: Target, reply: Reply
    ) -> AsyncGenerator[inference_pb2.Delta | target_pb2.TargetFinish, None]:
        """What `reply` takes of each message, then its end. Closing the generator cancels the target's work at once.

        Raises what the target reported, Unavailable if no target could go on, DeadlineExceeded.
        """
        target = first
        async with AsyncExitStack() as lease:
            while True:
                try:
                    async with aclosing(self._decode(target, reply)) as events:
                        async for event in events:
                            yield event
                    return
                except Unavailable as lost:
                    self._targets.give_up(target)
                    if (end := reply.ended()) is not None:
                        yield end
                        return
                    await lease.aclose()
                    target = await self._another(lease, target, lost)
                except Overloaded as full:
                    if not reply.delivered:
                        raise  # nothing was promised yet
                    await lease.aclose()
                    target = await self._another(lease, target, full)

    async def _decode(
        self, target: Target, reply: Reply
    ) -> AsyncGenerator[inference_pb2.Delta | target_pb2.TargetFinish, None]:
        request = target_pb2.DecodeRequest()
        request.CopyFrom(self._resolved.decode)
        request.delivered_tokens = ints_to_bytes(reply.delivered)
        request.deviation_spent, request.relaxed_tokens = reply.deviation_spent, reply.relaxed_tokens
        request.request_id, request.choice = self._request_id, reply.index
        call = target.stub.Decode(request, timeout=self._deadline.left_s())
        finished = False
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                kind = response.WhichOneof("event")
                if kind == "tokens" and not finished:
                    self._moves = 0
                    delta = reply.take(bytes_to_ints(response.tokens, "tokens").tolist(), response.rounds)
                    reply.account(response.relaxed_tokens, response.deviation_spent)
                    yield delta
                elif kind == "finish" and not finished:
                    finished = True
                    yield response.finish
        except grpc.aio.AioRpcError as error:
            if not finished:
                raise _readable(error, target) from None
        finally:
            call.cancel()  # frees the target's session if the client left; an ended call does not mind
        if not finished:
            raise Unavailable(f"the target at {target.lease.address} ended the reply without a finish")

    async def _another(self, lease: AsyncExitStack, failed: Target, why: PacelineError) -> Target:
        """A target that goes on with the reply. Raises `why`'s kind when the tries are used up."""
        while True:
            if self._moves >= self._config.max_failovers:
                raise type(why)(f"{why}; moved {self._moves} times (max_failovers), to no avail") from None
            log.warning("request %s: %s; moving to another target", self._request_id, why)
            await self._pause()
            self._moves += 1
            try:
                target = await lease.enter_async_context(self._targets.lease(self._deadline))
            except Unavailable as error:
                why = error
                continue
            _check_same(failed, target)
            return target

    async def _pause(self) -> None:
        if self._moves > 0:
            pause_s = self._config.failover_pause_ms / 1e3 * 2 ** (self._moves - 1)
            await asyncio.sleep(self._deadline.at_most(pause_s))


def _readable(error: grpc.aio.AioRpcError, target: Target) -> PacelineError:
    """The target's error; a stream that was cut off, in whichever words, is Unavailable."""
    code, details = error.code(), error.details() or ""
    cut = code is grpc.StatusCode.CANCELLED or (code is grpc.StatusCode.INTERNAL and "RST_STREAM" in details)
    if cut or code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(f"the target at {target.lease.address} was lost: {details or code.name}")
    return from_rpc_error(error)


def _check_same(failed: Target, target: Target) -> None:
    """Raises Unavailable unless the new target serves the model that the reply began with."""
    ours, theirs = failed.model, target.model
    for field in ("model", "vocab_size", "context_length", "dtype", "tokenizer_fingerprint"):
        if getattr(ours, field) != getattr(theirs, field):
            raise Unavailable(
                f"the reply began with a target that was lost, and the one at {target.lease.address} has another"
                f" {field}: {getattr(theirs, field)!r} instead of {getattr(ours, field)!r}; send the request again"
            )
