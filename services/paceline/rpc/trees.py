"""Trees and rows on the wire."""

from __future__ import annotations

import numpy as np

from paceline.errors import InvalidField
from paceline.rpc.arrays import bytes_to_floats, bytes_to_ints, floats_to_bytes, ints_to_bytes
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row
from paceline.speculation.tree import DraftTree, TreeFault
from paceline.v1 import draft_pb2


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
