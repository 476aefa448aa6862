"""How far a session's drafter has been right so far."""

from __future__ import annotations

MEMORY = 0.95  # weight that the past keeps per round
PRIOR = 1.0  # tokens; weight of the assumption that the drafter's probabilities are right


class Calibration:
    """How a session's accepted tokens compare with what its drafter's probabilities promised."""

    __slots__ = ("_accepted", "_promised")

    def __init__(self) -> None:
        self._accepted = 0.0
        self._promised = 0.0

    @property
    def factor(self) -> float:
        """Accepted over promised, drawn towards 1 by the prior."""
        return (self._accepted + PRIOR) / (self._promised + PRIOR)

    def learn(self, promised: float, accepted: int) -> None:
        """Takes a round in. A round without a tree fades the past, so that a drafter once bad is tried again."""
        self._accepted = MEMORY * self._accepted + accepted
        self._promised = MEMORY * self._promised + promised
