"""Rounds of a reply, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.v1 import common_pb2


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round: a pass that emitted tokens, or drew one from a row that was there."""

    position: int  # in prompt and reply, of the first token emitted
    emitted: tuple[int, ...]  # draft tokens first
    emitted_texts: tuple[str, ...]
    rule: str  # selection rule
    reason: str  # why that rule, where the server chose it; else ""
    tree_tokens: tuple[int, ...]  # token of each node of the verified tree
    tree_texts: tuple[str, ...]
    tree_parents: tuple[int, ...]  # an earlier node's index, or -1
    tree_log_probs: tuple[float, ...]  # natural logarithm of the drafter's probability given the parent; () if unknown
    accepted: tuple[int, ...]  # nodes, from the first level down
    relaxed: tuple[int, ...]  # those of `accepted` that only the nucleus rule accepted
    drawn: int | None  # the token the target added itself; None if there is none, or it is held back
    focused: bool  # draw_first: the tree's root is a token drawn before the tree was spent
    fallback: str  # why there was no tree although one was wanted; else ""
    draft_ms: float | None  # from asking for the tree to its arrival; None if none came
    pass_ms: float
    pass_tokens: int  # other sessions' included
    deviation_spent: float  # by the reply so far
    budget: int = 0  # draft nodes asked for
    budget_reason: str = ""  # why so many, where the server chose them


def round_of(trace: common_pb2.RoundTrace) -> RoundTrace:
    """A round as a value."""
    return RoundTrace(
        position=trace.position,
        emitted=tuple(trace.emitted),
        emitted_texts=tuple(trace.emitted_texts),
        rule=trace.rule,
        reason=trace.reason,
        tree_tokens=tuple(trace.tree_tokens),
        tree_texts=tuple(trace.tree_texts),
        tree_parents=tuple(trace.tree_parents),
        tree_log_probs=tuple(trace.tree_log_probs),
        accepted=tuple(trace.accepted),
        relaxed=tuple(trace.relaxed),
        drawn=trace.drawn if trace.HasField("drawn") else None,
        focused=trace.focused,
        fallback=trace.fallback,
        draft_ms=trace.draft_ms if trace.HasField("draft_ms") else None,
        pass_ms=trace.pass_ms,
        pass_tokens=trace.pass_tokens,
        deviation_spent=trace.deviation_spent,
        budget=trace.budget,
        budget_reason=trace.budget_reason,
    )
