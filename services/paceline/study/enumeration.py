"""Laws of replies by enumeration, for models small enough to walk every outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.noise import Purpose
from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import Candidates, ranked
from paceline.speculation.rows import Row, nucleus
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, verify


class EveryChoice:
    """Plays a script of outcomes; beyond its end it takes the first one and notes the others as branches."""

    def __init__(self, script: tuple[int, ...]) -> None:
        """`script`: outcomes, in the order of asking."""
        self._script = script
        self._taken: list[int] = []
        self.probability = 1.0
        self.branches: list[tuple[int, ...]] = []

    def draw(self, row: Row, position: int, purpose: Purpose = Purpose.DRAW) -> int:
        """A token of the row."""
        return self.pick(dict(zip(row.token_ids.tolist(), row.probs.tolist(), strict=True)))

    def accept(self, prob: float, position: int, sibling: int) -> bool:
        """True or false."""
        return bool(self.pick({1: prob, 0: 1.0 - prob}))

    def pick(self, probs: dict[int, float]) -> int:
        """One of several outcomes by their probabilities; those of probability 0 never."""
        possible = {outcome: prob for outcome, prob in probs.items() if prob > 0}
        step = len(self._taken)
        if step < len(self._script):
            outcome = self._script[step]
        else:
            outcome, *others = possible
            self.branches += [(*self._taken, other) for other in others]
        self._taken.append(outcome)
        self.probability *= possible[outcome]
        return outcome


@dataclass(frozen=True, slots=True)
class TableModel:
    """Target and drafter whose rows depend on the last token only."""

    target: NDArray[np.float64]  # [V, V]
    drafter: NDArray[np.float64]  # [V, V]


@dataclass(frozen=True, slots=True)
class Law:
    """A reply's law, and what its relaxations were booked at."""

    probs: dict[tuple[int, ...], float]
    spent: float  # expected
    fired: float  # relaxations expected


def law(model: TableModel, children: tuple[int, ...], *, sampled: bool, rule: Nucleus, horizon: int) -> Law:
    """The law of `horizon` tokens after token 0.

    Args:
        model: the two tables.
        children: of the root, of its first child, and so on: the tree is a spine with siblings.
        sampled: siblings are drawn from the drafter's rows, else they are its most probable tokens.
        rule: of verification.
        horizon: tokens of the reply.
    """
    probs: dict[tuple[int, ...], float] = {}
    spent = fired = 0.0
    for tokens, ledger, weight in _outcomes(lambda choices: _reply(model, children, sampled, rule, horizon, choices)):
        probs[tokens] = probs.get(tokens, 0.0) + weight
        spent += weight * ledger.spent
        fired += weight * ledger.relaxed
    return Law(probs, spent, fired)


def total_variation(one: Law, other: Law) -> float:
    """Half the sum of absolute differences."""
    keys = one.probs.keys() | other.probs.keys()
    return 0.5 * sum(abs(one.probs.get(key, 0.0) - other.probs.get(key, 0.0)) for key in keys)


Played = tuple[tuple[int, ...], Ledger]


def _outcomes(run: Callable[[EveryChoice], Played]) -> Iterator[tuple[tuple[int, ...], Ledger, float]]:
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        choices = EveryChoice(scripts.pop())
        tokens, ledger = run(choices)
        scripts += choices.branches
        yield tokens, ledger, choices.probability


def _reply(
    model: TableModel, children: tuple[int, ...], sampled: bool, rule: Nucleus, horizon: int, choices: EveryChoice
) -> Played:
    tokens = [0]
    ledger = Ledger()
    while len(tokens) <= horizon:
        left = horizon - len(tokens)  # the walk emits a drawn token besides
        tree = _tree(model, tokens[-1], children[: max(left, 0)], sampled, choices)

        def row_at(node: int, tree: DraftTree = tree, last: int = tokens[-1]) -> Row:
            return Row.from_dense(model.target[last if node == ROOT else int(tree.tokens[node])])

        def nucleus_at(node: int, row_at: Callable[[int], Row] = row_at) -> Row:
            return nucleus(row_at(node), rule.mass)

        relaxing = Relaxing(rule, ledger, len(tokens) - 1, row_at, nucleus_at)
        walk = verify(tree, row_at, choices, len(tokens), relaxing=relaxing)
        tokens += walk.tokens
        ledger = walk.ledger
    return tuple(tokens[1:]), ledger


def _tree(model: TableModel, last: int, children: tuple[int, ...], sampled: bool, choices: EveryChoice) -> DraftTree:
    """A spine: each level's siblings stand below the first node of the level above."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[ProposalRow | None] = [None]
    above = ROOT
    for count in children:
        row = model.drafter[last]
        proposal = ProposalRow(np.flatnonzero(row > 0).astype(np.int32), row[row > 0].astype(np.float32))
        siblings = _drawn(proposal, count, choices) if sampled else _best(row, count)
        rows[above + 1] = proposal
        first = len(tokens)
        tokens += siblings
        parents += [above] * len(siblings)
        rows += [None] * len(siblings)
        above, last = first, siblings[0]
    return DraftTree.build(tokens, parents, None, rows if sampled else None)


def _best(row: NDArray[np.float64], count: int) -> list[int]:
    with np.errstate(divide="ignore"):
        found: Candidates = ranked(np.arange(len(row)), np.log(row), count)
    return found.tokens.tolist()


def _drawn(proposal: ProposalRow, count: int, choices: EveryChoice) -> list[int]:
    """Without replacement, in drawn order: the law of Gumbel-top-k."""
    left = dict(zip(proposal.token_ids.tolist(), proposal.weights.astype(np.float64).tolist(), strict=True))
    siblings: list[int] = []
    for _ in range(min(count, len(left))):
        total = sum(left.values())
        siblings.append(choices.pick({token: weight / total for token, weight in left.items()}))
        del left[siblings[-1]]
    return siblings
