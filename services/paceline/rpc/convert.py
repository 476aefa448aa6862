"""Between messages and the types of the maths."""

from __future__ import annotations

import numpy as np

from paceline.errors import InvalidField
from paceline.rpc.arrays import bytes_to_floats, bytes_to_ints, floats_to_bytes, ints_to_bytes
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.nucleus import Nucleus
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree, TreeFault
from paceline.v1 import common_pb2, draft_pb2

# Unspecified is in none of these tables: whoever reads a message decides what it means.
PROPOSALS = {
    common_pb2.PROPOSAL_RANKED: Proposal.RANKED,
    common_pb2.PROPOSAL_COUPLED: Proposal.COUPLED,
    common_pb2.PROPOSAL_SAMPLED: Proposal.SAMPLED,
}
SELECTIONS = {
    common_pb2.SELECTION_RULE_AUTO: Selection.AUTO,
    common_pb2.SELECTION_RULE_DRAFT: Selection.DRAFT,
    common_pb2.SELECTION_RULE_RETAIN: Selection.RETAIN,
    common_pb2.SELECTION_RULE_RERANK: Selection.RERANK,
    common_pb2.SELECTION_RULE_DRAW_FIRST: Selection.DRAW_FIRST,
}
WAITS = {
    common_pb2.WAIT_MODE_TREE: WaitFor.TREE,
    common_pb2.WAIT_MODE_DEADLINE: WaitFor.DEADLINE,
    common_pb2.WAIT_MODE_NEVER: WaitFor.NEVER,
}
PROPOSAL_NUMBERS = {kind: number for number, kind in PROPOSALS.items()}
SELECTION_NUMBERS = {rule: number for number, rule in SELECTIONS.items()}
WAIT_NUMBERS = {wait: number for number, wait in WAITS.items()}


def nucleus_from_proto(message: common_pb2.NucleusVerification) -> Nucleus:
    """Settings from a message, checked. Raises InvalidField for the first field out of range, and without a mass."""
    if not message.HasField("mass"):
        raise InvalidField("speculation.nucleus.mass", "nothing", "0 (the exact rule) to 1", "Set the nucleus's mass.")
    optional = {
        name: getattr(message, name) if message.HasField(name) else None
        for name in ("temperature", "max_deviation", "max_deviation_per_token", "max_relaxations")
    }
    settings = Nucleus(mass=message.mass, **optional)
    for field, value, allowed in settings.faults():
        raise InvalidField(f"speculation.nucleus.{field}", value, allowed)
    return settings


def sampling_to_proto(params: SamplingParams, *, with_seed: bool = True) -> common_pb2.SamplingParams:
    """A message with every field set; the seed stays home unless the other side needs the noise."""
    message = common_pb2.SamplingParams(temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    if with_seed:
        message.seed = params.seed
    return message


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Parameters from a message of another service, absent fields at their defaults; ranges are not checked."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        seed=message.seed,
    )


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidField for the first field out of range."""
    for field, value, allowed in params.faults(vocab_size):
        raise InvalidField(f"sampling.{field}", value, allowed)


def row_to_proto(row: Row) -> draft_pb2.SparseRow:
    """The most probable tokens of a row; those whose probability is 0 in float32 count in the tail."""
    held = row.probs.astype(np.float32) > 0
    return draft_pb2.SparseRow(
        token_ids=ints_to_bytes(row.token_ids[held]),
        probs=floats_to_bytes(row.probs[held]),
        tail=max(0.0, 1.0 - float(row.probs.sum(dtype=np.float64))),
    )


def row_from_proto(message: draft_pb2.SparseRow, vocab_size: int) -> Row:
    """A row from the wire, checked. Raises InvalidField."""
    token_ids = bytes_to_ints(message.token_ids, "row.token_ids").astype(np.int64)
    probs = bytes_to_floats(message.probs, "row.probs").astype(np.float64)
    if not len(token_ids) or len(token_ids) != len(probs):
        raise InvalidField("row", f"{len(token_ids)} ids, {len(probs)} probabilities", "as many, at least one")
    if not (np.diff(token_ids) > 0).all() or token_ids[0] < 0 or token_ids[-1] >= vocab_size:
        raise InvalidField("row.token_ids", "ids", f"ascending, 0 to {vocab_size - 1}")
    if not (np.isfinite(probs).all() and probs.min() > 0 and probs.sum() <= 1 + 1e-3):
        raise InvalidField("row.probs", "probabilities", "above 0, sum at most 1")
    return Row(token_ids, probs)


def tree_to_proto(tree: DraftTree, base_length: int, *, growing: bool = False) -> draft_pb2.DraftTree:
    """A tree that grows from a context of `base_length` tokens; `growing` if more levels of it are to come."""
    rows = [
        draft_pb2.ProposalRow(
            node=index - 1, token_ids=ints_to_bytes(row.token_ids), weights=floats_to_bytes(row.weights)
        )
        for index, row in enumerate(tree.rows or ())
        if row is not None
    ]
    return draft_pb2.DraftTree(
        base_length=base_length,
        tokens=ints_to_bytes(tree.tokens),
        parents=ints_to_bytes(tree.parents),
        log_probs=b"" if tree.log_probs is None else floats_to_bytes(tree.log_probs),
        growing=growing,
        rows=rows,
    )


def tree_from_proto(message: draft_pb2.DraftTree, *, vocab_size: int, max_nodes: int, max_depth: int) -> DraftTree:
    """A tree from the wire, checked. Raises TreeFault naming the rule it breaks."""
    try:
        tokens = bytes_to_ints(message.tokens, "tokens")
        parents = bytes_to_ints(message.parents, "parents")
        log_probs = bytes_to_floats(message.log_probs, "log_probs") if message.log_probs else None
        rows = _rows(message, len(tokens)) if message.rows else None
    except InvalidField as error:
        raise TreeFault(str(error)) from error
    return DraftTree.checked(
        tokens, parents, log_probs, rows, vocab_size=vocab_size, max_nodes=max_nodes, max_depth=max_depth
    )


def _rows(message: draft_pb2.DraftTree, nodes: int) -> tuple[ProposalRow | None, ...]:
    rows: list[ProposalRow | None] = [None] * (nodes + 1)
    for each in message.rows:
        if not -1 <= each.node < nodes or rows[each.node + 1] is not None:
            raise InvalidField("rows.node", each.node, f"each of -1 to {nodes - 1} once")
        rows[each.node + 1] = ProposalRow(
            bytes_to_ints(each.token_ids, "rows.token_ids"), bytes_to_floats(each.weights, "rows.weights")
        )
    return tuple(rows)
