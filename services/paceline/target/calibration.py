"""How far a session's drafter has been right so far."""

from __future__ import annotations

MEMORY = 0.95  # weight that the past keeps per round
PRIOR = 1.0  # tokens; weight of what was expected before anything was seen


class Calibration:
    """How a session's accepted tokens compare with what its drafter's probabilities promised."""

    __slots__ = ("_accepted", "_expected", "_promised")

    def __init__(self, expected: float = 1.0) -> None:
        """`expected`: the factor before anything is seen; 1 takes the drafter's probabilities for right."""
        self._accepted = 0.0
        self._promised = 0.0
        self._expected = expected

    @property
    def factor(self) -> float:
        """Accepted over promised, drawn towards what was expected."""
        return (self._accepted + PRIOR * self._expected) / (self._promised + PRIOR)

    def learn(self, promised: float, accepted: int) -> None:
        """Takes a round in. A round without a tree fades the past, so that a drafter once bad is tried again."""
        self._accepted = MEMORY * self._accepted + accepted
        self._promised = MEMORY * self._promised + promised
