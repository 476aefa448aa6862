"""Every outcome of a randomised procedure with its probability: the driver behind the tests of laws."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from paceline.speculation.rows import Row

Outcome = TypeVar("Outcome", bound=Hashable)


class ScriptedChoices:
    """Plays a script of draws; beyond its end it takes the first token and notes the others as branches to try."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.probability = 1.0
        self.branches: list[tuple[int, ...]] = []

    def draw(self, row: Row, position: int) -> int:
        step = len(self.taken)
        if step < len(self._script):
            token = self._script[step]
        else:
            token, *others = row.token_ids.tolist()
            self.branches += [(*self.taken, other) for other in others]
        self.taken.append(token)
        self.probability *= row.prob(token)
        return token


def outcomes(run: Callable[[ScriptedChoices], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """Each outcome of `run` over every sequence of draws, with its probability."""
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
