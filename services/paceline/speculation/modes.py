"""Kinds of proposals, selection rules and waits, and which of them go together (THEORY 6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIN_STRENGTH, MAX_STRENGTH = 0.1, 1e6  # of coupled proposals
MAX_DEADLINE_MS = 60_000  # that a request may wait for a tree


class Proposal(StrEnum):
    """How children are proposed."""

    RANKED = "ranked"
    COUPLED = "coupled"
    SAMPLED = "sampled"


class Selection(StrEnum):
    """Which of the target's rows shape the next tree."""

    AUTO = "auto"
    DRAFT = "draft"
    RETAIN = "retain"
    RERANK = "rerank"
    DRAW_FIRST = "draw_first"


class WaitFor(StrEnum):
    """How long the target waits for a tree."""

    TREE = "tree"
    DEADLINE = "deadline"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a combination is not legal."""

    field: str  # of SpeculationParams
    value: str
    allowed: str
    remedy: str


def refusal(proposal: Proposal, selection: Selection, *, nucleus: bool, greedy: bool) -> Refusal | None:
    """The reason a combination is refused; None if it is legal.

    Args:
        proposal: kind of proposal.
        selection: selection rule; AUTO takes only what is legal.
        nucleus: whether verification may relax.
        greedy: whether the most probable token is served.
    """
    if greedy and proposal is not Proposal.RANKED:
        return Refusal(
            "proposal",
            proposal.value,
            "ranked where the most probable token is served (temperature 0, top_k 1 or top_p 0)",
            "There is no noise to follow and nothing to sample; leave it out or raise the temperature.",
        )
    if nucleus and proposal is Proposal.COUPLED:
        return Refusal(
            "proposal",
            proposal.value,
            "ranked or sampled with nucleus verification",
            "A tree that knows the noise would be relaxed more often than the limits count; leave it out.",
        )
    if proposal is Proposal.SAMPLED and selection in (Selection.RETAIN, Selection.RERANK):
        return Refusal(
            "selection",
            selection.value,
            "draft, draw_first or auto with sampled proposals",
            "Choosing among sampled siblings by a row would bias the law; take ranked or coupled proposals.",
        )
    return None
