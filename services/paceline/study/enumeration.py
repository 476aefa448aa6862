"""Laws of replies by enumeration, for models small enough to walk every outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import Candidates, ranked
from paceline.speculation.rows import Row, nucleus
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, verify
from paceline.study.outcomes import ScriptedChoices, outcomes


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
    played = outcomes(lambda choices: _reply(model, children, sampled, rule, horizon, choices))
    for (tokens, charged, relaxed), weight in played:
        probs[tokens] = probs.get(tokens, 0.0) + weight
        spent += weight * charged
        fired += weight * relaxed
    return Law(probs, spent, fired)


def _reply(
    model: TableModel, children: tuple[int, ...], sampled: bool, rule: Nucleus, horizon: int, choices: ScriptedChoices
) -> tuple[tuple[int, ...], float, int]:
    """Tokens, what the ledger spent, and how many were relaxed."""
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
    return tuple(tokens[1:]), ledger.spent, ledger.relaxed


def _tree(
    model: TableModel, last: int, children: tuple[int, ...], sampled: bool, choices: ScriptedChoices
) -> DraftTree:
    """A spine: each level's siblings stand below the first node of the level above."""
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[ProposalRow | None] = [None]
    above = ROOT
    for count in children:
        row = model.drafter[last]
        proposal = ProposalRow(np.flatnonzero(row > 0).astype(np.int32), row[row > 0].astype(np.float32))
        siblings = choices.siblings(proposal, count) if sampled else _best(row, count)
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
