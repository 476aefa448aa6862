"""Every outcome of a randomised procedure with its probability, as far as it takes its randomness from `Choices`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from paceline.speculation.noise import Purpose
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row

Outcome = TypeVar("Outcome", bound=Hashable)
State = TypeVar("State", bound=Hashable)


class ScriptedChoices:
    """Plays a script of outcomes; beyond its end it takes the first one and notes the others as branches to try."""

    def __init__(self, script: tuple[int, ...] = ()) -> None:
        self._script = script
        self.taken: list[int] = []
        self.probability = 1.0
        self.branches: list[tuple[int, ...]] = []

    def draw(self, row: Row, position: int, purpose: Purpose = Purpose.DRAW) -> int:
        """Each token of the row in turn."""
        return self._choose(dict(zip(row.token_ids.tolist(), row.probs.tolist(), strict=True)))

    def accept(self, prob: float, position: int, sibling: int) -> bool:
        """Both outcomes in turn, unless one cannot be."""
        return bool(self._choose({outcome: each for outcome, each in ((1, prob), (0, 1.0 - prob)) if each > 0}))

    def siblings(self, row: ProposalRow, count: int) -> list[int]:
        """Each sequence of `count` tokens in turn (fewer if the row is smaller), drawn without replacement."""
        weights = dict(zip(row.token_ids.tolist(), row.weights.astype(np.float64).tolist(), strict=True))
        drawn: list[int] = []
        while weights and len(drawn) < count:
            total = sum(weights.values())
            drawn.append(self._choose({token: weight / total for token, weight in weights.items()}))
            del weights[drawn[-1]]
        return drawn

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


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedProposal(ProposalRow):
    """A proposal row whose siblings are outcomes to walk instead of draws under noise."""

    choices: ScriptedChoices

    def draw(self, key: int, count: int) -> list[int]:
        """The siblings of this run; `key` addresses noise, of which there is none."""
        return self.choices.siblings(self, count)


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


def rounds(
    step: Callable[[State, ScriptedChoices], State], start: State, finished: Callable[[State], bool]
) -> dict[State, float]:
    """Law of the state in which a procedure of many rounds finishes.

    Equal states are walked once, which is right because `step` may look at nothing but the state and its choices.
    """
    ended: dict[State, float] = {}
    reached = {start: 1.0}
    while reached:
        following: dict[State, float] = {}
        for state, probability in reached.items():
            if finished(state):
                ended[state] = ended.get(state, 0.0) + probability
                continue
            for after, share in law(partial(step, state)).items():
                following[after] = following.get(after, 0.0) + probability * share
        reached = following
    return ended


def total_variation(first: dict[Outcome, float], second: dict[Outcome, float]) -> float:
    """Half the sum of the absolute differences of two laws."""
    return 0.5 * sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys())
