"""A drafter on real gRPC that says right things until it is told to lie."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio

from paceline.rpc.arrays import bytes_to_ints, floats_to_bytes, ints_to_bytes
from paceline.rpc.server import DataPlaneServer
from paceline.rpc.trees import tree_to_proto
from paceline.speculation.tree import DraftTree
from paceline.v1 import draft_pb2, inference_pb2

SERVICE = "paceline.v1.DraftService"
Reply = draft_pb2.SessionReply


def _tree(tokens: list[int], parents: list[int]) -> Callable[[Reply], None]:
    def lie(reply: Reply) -> None:
        reply.tree.tokens, reply.tree.parents = ints_to_bytes(tokens), ints_to_bytes(parents)
        reply.tree.log_probs = b""

    return lie


def _garbled(reply: Reply) -> None:
    reply.tree.tokens, reply.tree.parents, reply.tree.log_probs = b"\xff\x00\xee", b"\x01", b"nonsense"


def _not_finite(reply: Reply) -> None:
    reply.tree.log_probs = b"\x00\x00\xc0\x7f" * (len(reply.tree.tokens) // 4)


def _drawn_siblings(reply: Reply) -> None:
    """Good in form; but who verifies siblings as drawn takes the drafter's word for how they were."""
    row = draft_pb2.ProposalRow(node=-1, token_ids=ints_to_bytes([3, 4]), weights=floats_to_bytes([1.0, 1.0]))
    reply.tree.tokens, reply.tree.parents, reply.tree.log_probs = ints_to_bytes([3]), ints_to_bytes([-1]), b""
    reply.tree.rows.append(row)


def _other_session(reply: Reply) -> None:
    reply.session += 1000


def _other_epoch(reply: Reply) -> None:
    reply.epoch += 1


def _length_ahead(reply: Reply) -> None:
    reply.tree.base_length += 1


def _length_behind(reply: Reply) -> None:
    reply.tree.base_length -= 1


def _unknown_error(reply: Reply) -> None:
    reply.error.code = 77  # type: ignore[assignment]


def _silent(reply: Reply) -> None:
    reply.ClearField("tree")


LIES: dict[str, Callable[[Reply], None]] = {
    "an empty tree": _tree([], []),
    "a cycle": _tree([1, 2, 3], [2, 0, 1]),
    "its own parent": _tree([1], [0]),
    "a parent after its child": _tree([1, 2], [1, -1]),
    "an id out of range": _tree([10_000], [-1]),
    "a negative id": _tree([-1], [-1]),
    "a parent out of range": _tree([1], [-2]),
    "twins": _tree([1, 1], [-1, -1]),
    "too many nodes": _tree([i % 8 for i in range(500)], list(range(-1, 499))),
    "arrays of other lengths": _tree([1, 2, 3], [-1]),
    "garbled arrays": _garbled,
    "log-probabilities that are not numbers": _not_finite,
    "rows that siblings were drawn from": _drawn_siblings,
    "another session": _other_session,
    "another epoch": _other_epoch,
    "a length ahead": _length_ahead,
    "a length behind": _length_behind,
    "an unknown error": _unknown_error,
    "nothing": _silent,
}
GARBAGE = "a frame of garbage"  # bytes that are no message at all


class LyingDrafter:
    """Keeps contexts and answers by `propose(context, budget)`; while `lie` is set, every answer is bent by it."""

    def __init__(self, propose: Callable[[list[int], int], DraftTree]) -> None:
        self.propose = propose
        self.lie: str | None = None
        self.lies_told = 0
        self.crossed = False  # answers of a frame go to each other's sessions
        self.contexts: dict[int, list[int]] = {}  # of the newest stream

    async def draft(self, frames: AsyncIterator[draft_pb2.DraftRequest], context: object) -> AsyncIterator[bytes]:
        contexts = self.contexts = {}
        async for frame in frames:
            replies = [reply for update in frame.updates if (reply := self._take(contexts, update)) is not None]
            if self.crossed and len(replies) > 1:
                sessions = [reply.session for reply in replies]
                for reply, session in zip(replies, [*sessions[1:], sessions[0]], strict=True):
                    reply.session = session
                    self.lies_told += 1
            if replies and self.lie == GARBAGE:
                self.lies_told += 1
                yield b"\xff\xff\xff this is no message"
            elif replies:
                yield draft_pb2.DraftResponse(replies=replies).SerializeToString()

    async def status(self, request: draft_pb2.GetDrafterStatusRequest, context: object) -> bytes:
        status = inference_pb2.DrafterStatus(proposer="lying", sessions=len(self.contexts))
        return draft_pb2.GetDrafterStatusResponse(status=status).SerializeToString()

    def _take(self, contexts: dict[int, list[int]], update: draft_pb2.SessionUpdate) -> Reply | None:
        kind = update.WhichOneof("update")
        if kind == "close":
            contexts.pop(update.session, None)
            return None
        if kind == "open":
            contexts[update.session] = bytes_to_ints(update.open.context_tokens).tolist()
            budget = update.open.budget
        elif kind == "target_row":
            contexts[update.session] += [update.target_row.drawn] if update.target_row.HasField("drawn") else []
            budget = update.target_row.budget
        else:
            contexts[update.session] += bytes_to_ints(update.advance.tokens).tolist()
            budget = update.advance.budget
        if not budget:
            return None
        context = contexts[update.session]
        tree = tree_to_proto(self.propose(list(context), budget), len(context))
        reply = Reply(session=update.session, epoch=update.epoch, tree=tree)
        if self.lie is not None and self.lie != GARBAGE:
            LIES[self.lie](reply)
            self.lies_told += 1
        return reply


@asynccontextmanager
async def serving_lies(drafter: LyingDrafter) -> AsyncIterator[str]:
    """The drafter on loopback; yields its address."""
    handlers = {
        "Draft": grpc.stream_stream_rpc_method_handler(
            drafter.draft, request_deserializer=draft_pb2.DraftRequest.FromString
        ),
        "GetDrafterStatus": grpc.unary_unary_rpc_method_handler(
            drafter.status, request_deserializer=draft_pb2.GetDrafterStatusRequest.FromString
        ),
    }
    server = DataPlaneServer(
        [],
        lambda made: made.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)]),
        host="127.0.0.1",
        port=0,
    )
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)
