"""Between the engine's drafting events and the frames of DraftService. Everything that comes in is validated here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.convert import PROPOSAL_NUMBERS, sampling_to_proto
from paceline.rpc.trees import row_to_proto, tree_from_proto
from paceline.speculation.noise import propose_seed
from paceline.speculation.tree import TreeFault
from paceline.target.fallback import Fallback
from paceline.target.port import Advance, DraftEvent, DraftFault, Open, Retry, RowTold, TreeArrived, Update
from paceline.v1 import draft_pb2

_ERRORS = {
    draft_pb2.SESSION_ERROR_CODE_TOKENIZER_MISMATCH: (Fallback.TOKENIZER_MISMATCH, Retry.NEVER),
    draft_pb2.SESSION_ERROR_CODE_CONTEXT_LIMIT: (Fallback.CONTEXT_LIMIT, Retry.NEVER),
    draft_pb2.SESSION_ERROR_CODE_PROTOCOL: (Fallback.INVALID, Retry.REOPEN),
    draft_pb2.SESSION_ERROR_CODE_OVERLOADED: (Fallback.EVICTED, Retry.LATER),
    draft_pb2.SESSION_ERROR_CODE_INTERNAL: (Fallback.INTERNAL, Retry.LATER),
}


@dataclass(frozen=True, slots=True)
class FrameCodec:
    """Writes and reads frames for one target."""

    tokenizer_fingerprint: str
    vocab_size: int  # tokens the target can emit
    max_nodes: int  # larger trees are refused
    max_depth: int  # deeper trees are refused

    def request(self, updates: Sequence[Update]) -> draft_pb2.DraftRequest:
        """One frame of everything that moved in a step."""
        return draft_pb2.DraftRequest(updates=[self._update(update) for update in updates])

    def events(self, response: draft_pb2.DraftResponse, at: float) -> list[DraftEvent]:
        """What a frame read at `at` says. A tree that breaks the rules becomes a fault of its session."""
        return [self._event(reply, at) for reply in response.replies]

    def _update(self, update: Update) -> draft_pb2.SessionUpdate:
        frame = draft_pb2.SessionUpdate(session=update.session, epoch=update.epoch)
        if isinstance(update, Open):
            frame.open.CopyFrom(self._open(update))
        elif isinstance(update, Advance):
            frame.advance.base_length = update.base_length
            frame.advance.tokens = ints_to_bytes(update.tokens)
            frame.advance.budget = update.budget
        elif isinstance(update, RowTold):
            frame.target_row.base_length = update.base_length
            frame.target_row.budget = update.budget
            frame.target_row.row.CopyFrom(row_to_proto(update.row))
            if update.drawn is not None:
                frame.target_row.drawn = update.drawn
        else:
            frame.close.SetInParent()
        return frame

    def _open(self, update: Open) -> draft_pb2.OpenSession:
        wish = update.wish
        options = draft_pb2.DraftOptions(
            proposal=PROPOSAL_NUMBERS[wish.proposal],
            strength=update.strength,
            sampling=sampling_to_proto(update.sampling, with_seed=wish.coupled),
            eos_token_ids=update.eos_token_ids,
            learn=update.learn,
        )
        if wish.coupled:
            options.choice = update.sampling.choice
        if wish.sampled:
            options.propose_seed = propose_seed(update.sampling.seed, update.sampling.choice)
        return draft_pb2.OpenSession(
            context_tokens=ints_to_bytes(update.context),
            prompt_length=update.prompt_length,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            vocab_size=self.vocab_size,
            options=options,
            budget=update.budget,
        )

    def _event(self, reply: draft_pb2.SessionReply, at: float) -> DraftEvent:
        session, epoch = reply.session, reply.epoch
        match reply.WhichOneof("reply"):
            case "tree":
                try:
                    tree = tree_from_proto(
                        reply.tree, vocab_size=self.vocab_size, max_nodes=self.max_nodes, max_depth=self.max_depth
                    )
                    return TreeArrived(session, epoch, reply.tree.base_length, tree, at, reply.tree.growing)
                except TreeFault as error:
                    return DraftFault(session, epoch, Fallback.INVALID, Retry.ASK, str(error))
            case "evicted":
                return DraftFault(session, epoch, Fallback.EVICTED, Retry.LATER, reply.evicted.reason)
            case "error":
                reason, retry = _ERRORS.get(reply.error.code, (Fallback.INVALID, Retry.LATER))
                return DraftFault(session, epoch, reason, retry, reply.error.message)
            case _:
                return DraftFault(session, epoch, Fallback.INVALID, Retry.ASK, "a reply without content")
