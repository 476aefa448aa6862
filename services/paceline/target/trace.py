"""A round, as it is told to clients that asked for it."""

from __future__ import annotations

from paceline.target.record import RoundRecord
from paceline.v1 import common_pb2


def trace_of(record: RoundRecord) -> common_pb2.RoundTrace:
    """The message of a round."""
    tree = record.tree
    trace = common_pb2.RoundTrace(
        position=record.position,
        emitted=record.delivered,
        rule=record.rule,
        reason=record.reason,
        budget=record.budget,
        budget_reason=record.budget_reason,
        tree_tokens=tree.tokens.tolist(),
        tree_parents=tree.parents.tolist(),
        tree_log_probs=() if tree.log_probs is None else tree.log_probs.tolist(),
        accepted=record.accepted,
        relaxed=record.relaxed,
        focused=record.focused,
        fallback=str(record.fallback or ""),
        pass_ms=(record.ended_at - record.started_at) * 1e3,
        pass_tokens=record.pass_tokens,
        deviation_spent=record.deviation_spent,
    )
    if record.drawn is not None:
        trace.drawn = record.drawn
    if record.tree_at is not None and record.asked_at is not None and record.tree_at >= record.asked_at:
        trace.draft_ms = (record.tree_at - record.asked_at) * 1e3
    return trace
