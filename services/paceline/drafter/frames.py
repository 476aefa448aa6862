"""Between the frames of DraftService and the engine's words. Everything that comes in is validated here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paceline.drafter.messages import Advance, Close, Fault, Open, Reply, RowTold, Update
from paceline.drafter.proposer import DraftOptions
from paceline.errors import InvalidField
from paceline.rpc.arrays import bytes_to_ints
from paceline.rpc.convert import PROPOSALS, check_sampling, sampling_from_proto
from paceline.rpc.trees import row_from_proto, tree_to_proto
from paceline.rpc.unknown_fields import refuse_unknown, refuse_unknown_here
from paceline.speculation.modes import Proposal
from paceline.v1 import draft_pb2

_CODES = {
    Fault.PROTOCOL: draft_pb2.SESSION_ERROR_CODE_PROTOCOL,
    Fault.CONTEXT_LIMIT: draft_pb2.SESSION_ERROR_CODE_CONTEXT_LIMIT,
    Fault.OVERLOADED: draft_pb2.SESSION_ERROR_CODE_OVERLOADED,
    Fault.INTERNAL: draft_pb2.SESSION_ERROR_CODE_INTERNAL,
    Fault.TOKENIZER_MISMATCH: draft_pb2.SESSION_ERROR_CODE_TOKENIZER_MISMATCH,
}
_ANY_ID = 2**31  # the engine knows the session's vocabulary


def updates_of(frame: draft_pb2.DraftRequest) -> tuple[list[Update], list[Reply]]:
    """What a frame says, and a fault for each session it says something wrong of; that session is closed.

    Raises InvalidField if the frame itself is not understood.
    """
    refuse_unknown_here(frame)
    updates: list[Update] = []
    refused: list[Reply] = []
    for message in frame.updates:
        try:
            refuse_unknown(message, "update")
            updates.append(_update(message))
        except InvalidField as error:
            refused.append(Reply(message.session, message.epoch, fault=Fault.PROTOCOL, message=str(error)))
            updates.append(Close(message.session, message.epoch))
    return updates, refused


def response_of(replies: Iterable[Reply]) -> draft_pb2.DraftResponse:
    """One frame of replies."""
    return draft_pb2.DraftResponse(replies=[_reply(reply) for reply in replies])


def _update(message: draft_pb2.SessionUpdate) -> Update:
    match message.WhichOneof("update"):
        case "open":
            return _open(message.session, message.epoch, message.open)
        case "advance":
            advance = message.advance
            tokens = bytes_to_ints(advance.tokens, "advance.tokens").tolist()
            return Advance(message.session, message.epoch, advance.base_length, tokens, advance.budget)
        case "target_row":
            told = message.target_row
            drawn = told.drawn if told.HasField("drawn") else None
            row = row_from_proto(told.row, _ANY_ID) if told.HasField("row") else None
            return RowTold(message.session, message.epoch, told.base_length, drawn, row, told.budget)
        case "close":
            return Close(message.session, message.epoch)
        case _:
            raise InvalidField("update", None, "open, advance, target_row or close")


def _open(session: int, epoch: int, message: draft_pb2.OpenSession) -> Open:
    context = bytes_to_ints(message.context_tokens, "open.context_tokens")
    if message.vocab_size < 1:
        raise InvalidField("open.vocab_size", message.vocab_size, "at least 1")
    if not len(context):
        raise InvalidField("open.context_tokens", "no ids", "at least one id")
    for token in (int(context.min()), int(context.max())):
        if not 0 <= token < message.vocab_size:
            raise InvalidField("open.context_tokens", token, f"ids from 0 to {message.vocab_size - 1}")
    if message.prompt_length > len(context):
        raise InvalidField("open.prompt_length", message.prompt_length, f"0 to {len(context)}")
    return Open(
        session,
        epoch,
        context,
        message.prompt_length,
        message.tokenizer_fingerprint,
        _options(message.options, message.vocab_size),
        message.budget,
    )


def _options(message: draft_pb2.DraftOptions, vocab_size: int) -> DraftOptions:
    proposal = PROPOSALS.get(message.proposal)
    if proposal is None:
        raise InvalidField("open.options.proposal", message.proposal, "ranked, coupled or sampled")
    coupled = proposal is Proposal.COUPLED
    if (proposal is Proposal.SAMPLED) != message.HasField("propose_seed"):
        raise InvalidField("open.options.propose_seed", message.propose_seed, "a value with sampled proposals only")
    if coupled and not message.strength > 0:
        raise InvalidField("open.options.strength", message.strength, "above 0")
    for field in ("temperature", "top_k", "top_p", *(["seed"] if coupled else [])):
        if not message.sampling.HasField(field):
            raise InvalidField(f"open.options.sampling.{field}", None, "a value, since zero is one")
    if message.choice and not coupled:
        raise InvalidField("open.options.choice", message.choice, "0 but with coupled proposals, which know the noise")
    sampling = replace(sampling_from_proto(message.sampling), choice=message.choice)
    check_sampling(sampling, vocab_size)
    return DraftOptions(
        proposal=proposal,
        strength=message.strength,
        sampling=sampling,
        eos_token_ids=frozenset(message.eos_token_ids),
        vocab_size=vocab_size,
        learn=message.learn,
        propose_seed=message.propose_seed,
    )


def _reply(reply: Reply) -> draft_pb2.SessionReply:
    if reply.tree is not None:
        tree = tree_to_proto(reply.tree, reply.base_length, growing=reply.growing)
        return draft_pb2.SessionReply(session=reply.session, epoch=reply.epoch, tree=tree)
    error = draft_pb2.SessionError(code=_CODES[reply.fault or Fault.INTERNAL], message=reply.message)
    return draft_pb2.SessionReply(session=reply.session, epoch=reply.epoch, error=error)
