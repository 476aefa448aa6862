"""The selection rules without overlap: the row pass waits until the tree is there."""

from __future__ import annotations

import math

from paceline.target.round import Moment, Rounds
from paceline.target.session import Session
from paceline.target.turn import Step, Turn, Wait


class SerialRounds(Rounds):
    """What the row rules cost where drafting and row pass come one after the other: a baseline for studies."""

    def choose(self, session: Session, committed: int, moment: Moment) -> Turn | Wait:
        """The same turns, a row pass not before the tree for its context has come."""
        choice = super().choose(session, committed, moment)
        if isinstance(choice, Wait) or choice.step is Step.VERIFY or choice.fallback is not None:
            return choice
        state = session.round
        if state is None or state.focused or session.drafting.fresh(len(session.context)) is not None:
            return choice
        return Wait(math.inf, moment.now) if session.drafting.held else choice
