"""The gRPC edge of the drafter: frames in, frames out, nothing computed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from paceline.drafter.engine import Advance, Close, DrafterEngine, Fault, Open, Reply, Update
from paceline.drafter.proposer import DraftOptions, Proposer
from paceline.errors import InvalidField, Unavailable
from paceline.rpc.arrays import bytes_to_ints
from paceline.rpc.convert import check_sampling, sampling_from_proto, tree_to_proto
from paceline.rpc.status import abort
from paceline.rpc.unknown_fields import refuse_unknown
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc, inference_pb2

logger = logging.getLogger(__name__)

_CODES = {
    Fault.PROTOCOL: draft_pb2.SESSION_ERROR_CODE_PROTOCOL,
    Fault.CONTEXT_LIMIT: draft_pb2.SESSION_ERROR_CODE_CONTEXT_LIMIT,
    Fault.OVERLOADED: draft_pb2.SESSION_ERROR_CODE_OVERLOADED,
    Fault.INTERNAL: draft_pb2.SESSION_ERROR_CODE_INTERNAL,
    Fault.TOKENIZER_MISMATCH: draft_pb2.SESSION_ERROR_CODE_TOKENIZER_MISMATCH,
}
_PROPOSALS = {common_pb2.PROPOSAL_RANKED: False, common_pb2.PROPOSAL_COUPLED: True}


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Serves DraftService. The stream is the lease: when it ends, its sessions are closed."""

    def __init__(self, engine: DrafterEngine, proposer: Proposer, incarnation: str) -> None:
        self._engine, self._proposer, self._incarnation = engine, proposer, incarnation
        self._draining = asyncio.Event()
        self._next_stream = 1
        self.address = ""  # set once the listener has one
        self.streams = 0

    def drain(self) -> None:
        """Ends every stream and refuses new ones, so that targets look for another drafter."""
        self._draining.set()

    async def Draft(  # noqa: N802 - the name of the method on the wire
        self,
        request_iterator: AsyncIterator[draft_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[draft_pb2.DraftResponse]:
        """One target's stream."""
        if self._draining.is_set():
            await abort(context, Unavailable("the drafter is draining"))
        stream, self._next_stream = self._next_stream, self._next_stream + 1
        outbox: asyncio.Queue[draft_pb2.DraftResponse | BaseException | None] = asyncio.Queue()
        self.streams += 1
        reader = asyncio.create_task(self._read(stream, request_iterator, outbox))
        drained = asyncio.create_task(self._draining.wait())
        drained.add_done_callback(lambda _: outbox.put_nowait(Unavailable("the drafter is draining")))
        try:
            while (item := await outbox.get()) is not None:
                if isinstance(item, BaseException):
                    await abort(context, item)
                else:
                    yield item
        finally:
            self.streams -= 1
            self._engine.end_stream(stream)
            reader.cancel()
            drained.cancel()

    async def GetDrafterStatus(  # noqa: N802 - the name of the method on the wire
        self, request: draft_pb2.GetDrafterStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> draft_pb2.GetDrafterStatusResponse:
        """Live state."""
        return draft_pb2.GetDrafterStatusResponse(
            status=inference_pb2.DrafterStatus(
                address=self.address,
                incarnation=self._incarnation,
                proposer=self._proposer.name,
                sessions=self._engine.sessions,
                streams=self.streams,
            ),
            tokenizer_fingerprint=self._proposer.tokenizer_fingerprint,
            context_length=self._proposer.context_length,
        )

    async def _read(
        self,
        stream: int,
        frames: AsyncIterator[draft_pb2.DraftRequest],
        outbox: asyncio.Queue[draft_pb2.DraftResponse | BaseException | None],
    ) -> None:
        loop = asyncio.get_running_loop()

        def deliver(replies: list[Reply]) -> None:
            response = draft_pb2.DraftResponse(replies=[_reply(reply) for reply in replies])
            loop.call_soon_threadsafe(outbox.put_nowait, response)

        try:
            async for frame in frames:
                refuse_unknown(frame)
                updates: list[Update] = []
                refused: list[Reply] = []
                for message in frame.updates:
                    try:
                        updates.append(_update(message))
                    except InvalidField as error:
                        refused.append(Reply(message.session, message.epoch, fault=Fault.PROTOCOL, message=str(error)))
                        updates.append(Close(message.session, message.epoch))
                if refused:
                    outbox.put_nowait(draft_pb2.DraftResponse(replies=[_reply(reply) for reply in refused]))
                self._engine.submit(stream, updates, deliver)
            outbox.put_nowait(None)
        except Exception as error:
            outbox.put_nowait(error)


def _update(message: draft_pb2.SessionUpdate) -> Update:
    """Raises InvalidField naming the field."""
    session, epoch = message.session, message.epoch
    match message.WhichOneof("update"):
        case "open":
            return _open(session, epoch, message.open)
        case "advance":
            tokens = bytes_to_ints(message.advance.tokens, "advance.tokens")
            if len(tokens) and int(tokens.min()) < 0:
                raise InvalidField("advance.tokens", int(tokens.min()), "token ids, at least 0")
            return Advance(session, epoch, message.advance.base_length, tokens.tolist(), message.advance.budget)
        case "close":
            return Close(session, epoch)
        case _:
            raise InvalidField("update", None, "open, advance or close")


def _open(session: int, epoch: int, message: draft_pb2.OpenSession) -> Open:
    context = bytes_to_ints(message.context_tokens, "open.context_tokens")
    if message.vocab_size < 1:
        raise InvalidField("open.vocab_size", message.vocab_size, "at least 1")
    if not len(context) or int(context.min()) < 0 or int(context.max()) >= message.vocab_size:
        raise InvalidField("open.context_tokens", context, f"at least one id, 0 to {message.vocab_size - 1}")
    if message.prompt_length > len(context):
        raise InvalidField("open.prompt_length", message.prompt_length, f"0 to {len(context)}")
    options = message.options
    if options.proposal not in _PROPOSALS:
        raise InvalidField("open.options.proposal", options.proposal, "ranked or coupled")
    sampling = sampling_from_proto(options.sampling)
    check_sampling(sampling, message.vocab_size)
    coupled = _PROPOSALS[options.proposal]
    if coupled and not options.strength > 0:
        raise InvalidField("open.options.strength", options.strength, "above 0")
    return Open(
        session,
        epoch,
        context,
        message.prompt_length,
        message.tokenizer_fingerprint,
        DraftOptions(
            coupled=coupled,
            strength=options.strength,
            sampling=sampling,
            eos_token_ids=frozenset(options.eos_token_ids),
            vocab_size=message.vocab_size,
            learn=options.learn,
        ),
        message.budget,
    )


def _reply(reply: Reply) -> draft_pb2.SessionReply:
    message = draft_pb2.SessionReply(session=reply.session, epoch=reply.epoch)
    if reply.fault is not None:
        message.error.code = _CODES[reply.fault]
        message.error.message = reply.message
    elif reply.tree is not None:
        message.tree.CopyFrom(tree_to_proto(reply.tree, reply.base_length))
    return message
