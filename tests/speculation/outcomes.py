"""Every outcome of a randomised procedure with its probability: the driver behind the tests of laws."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from paceline.speculation.noise import Purpose
from paceline.speculation.rows import Row

Outcome = TypeVar("Outcome", bound=Hashable)


class ScriptedChoices:
    """Plays a script of outcomes; beyond its end it takes the first one and notes the others as branches to try."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.probability = 1.0
        self.branches: list[tuple[int, ...]] = []

    def draw(self, row: Row, position: int, purpose: Purpose = Purpose.DRAW) -> int:
        return self._choose(dict(zip(row.token_ids.tolist(), row.probs.tolist(), strict=True)))

    def accept(self, prob: float, position: int, sibling: int) -> bool:
        return bool(self._choose({outcome: each for outcome, each in ((1, prob), (0, 1.0 - prob)) if each > 0}))

    def _choose(self, probs: dict[int, float]) -> int:
        step = len(self.taken)
        if step < len(self._script):
            outcome = self._script[step]
        else:
            outcome, *others = probs
            self.branches += [(*self.taken, other) for other in others]
        self.taken.append(outcome)
        self.probability *= probs[outcome]
        return outcome


def outcomes(run: Callable[[ScriptedChoices], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """Each outcome of `run` over every sequence of choices, with its probability."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        choices = ScriptedChoices(scripts.pop())
        outcome = run(choices)
        scripts += choices.branches
        yield outcome, choices.probability


def law(run: Callable[[ScriptedChoices], Outcome]) -> dict[Outcome, float]:
    """Probability of each outcome."""
    total: dict[Outcome, float] = {}
    for outcome, probability in outcomes(run):
        total[outcome] = total.get(outcome, 0.0) + probability
    return total
