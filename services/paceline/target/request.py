"""What a session is asked to do, resolved and validated."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.sampling import SamplingParams

CANDIDATES = 3  # nodes asked for where the target prunes or filters, as a multiple of the budget (THEORY 5)


@dataclass(frozen=True, slots=True)
class DraftWish:
    """What a request wants of the drafter, and how its trees are used."""

    budget: int = 0  # draft nodes per round; 0 decodes plainly
    proposal: Proposal = Proposal.RANKED
    strength: float | None = None  # coupling strength; None: learned, and where proposals are not coupled
    selection: Selection = Selection.DRAFT
    wait: WaitFor = WaitFor.DEADLINE
    deadline_s: float | None = None  # of a tree; None: the replica's
    auto: bool = False  # `budget` is the most: the target chooses each round's nodes

    @property
    def own_deadline(self) -> bool:
        """True if the request says how long it waits, whatever the replica would."""
        return self.deadline_s is not None or self.wait is WaitFor.TREE

    @property
    def coupled(self) -> bool:
        """True if the drafter must know the request's noise."""
        return self.proposal is Proposal.COUPLED

    @property
    def sampled(self) -> bool:
        """True if siblings are drawn."""
        return self.proposal is Proposal.SAMPLED


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class SessionRequest:
    """A request whose fields are all resolved and in range."""

    prompt: NDArray[np.int32]  # [prompt] int32, at least one
    max_tokens: int  # of the reply, delivered ones included
    delivered: NDArray[np.int32] = field(default_factory=_no_tokens)  # [delivered] int32, sent by an earlier replica
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    wish: DraftWish = field(default_factory=DraftWish)
    nucleus: Nucleus | None = None  # None verifies exactly
    ledger: Ledger = field(default_factory=Ledger)  # what relaxations had cost at an earlier replica
    learn: bool = True  # whether the request lets drafters learn from the reply
    trace: bool = False  # whether rounds go to the sink too
    request_id: str = ""
    deadline: float | None = None  # on the engine's clock, seconds; None for none

    @property
    def shares_outcome(self) -> bool:
        """Whether others may know what its noise led to: not if trees of a replay must not know it."""
        return self.nucleus is None and not self.wish.sampled

    @property
    def teaches(self) -> bool:
        """Whether a drafter may learn from the reply."""
        return self.learn and self.shares_outcome
