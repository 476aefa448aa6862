"""Verification of draft trees: sample-match, recursive rejection, and the relaxation of either (THEORY 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.speculation.choices import Choices
from paceline.speculation.noise import Purpose
from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.rejection import recursion
from paceline.speculation.rows import Row
from paceline.speculation.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """Outcome of a walk. `tokens` are what is emitted; the first `len(accepted)` of them are draft tokens."""

    accepted: tuple[int, ...]  # accepted nodes, from the first level down
    tokens: tuple[int, ...]  # emitted tokens; never empty
    relaxed: tuple[int, ...] = ()  # indices in `tokens` of those that only the nucleus rule accepted
    ledger: Ledger = field(default_factory=Ledger)  # of the reply, this walk included

    @property
    def drawn(self) -> int | None:
        """The token the target added itself; None if the walk ended on an accepted stop token."""
        return self.tokens[-1] if len(self.tokens) > len(self.accepted) else None

    @property
    def last(self) -> int:
        """The node the walk ended at: the last accepted one, or ROOT."""
        return self.accepted[-1] if self.accepted else ROOT


@dataclass(frozen=True, slots=True, eq=False)
class Relaxing:
    """What nucleus verification needs beside the rows that are drawn from."""

    rule: Nucleus
    ledger: Ledger  # of the reply so far
    index: int  # in the reply, of the first token to be emitted
    full_row_at: Callable[[int], Row]  # the served row at a node, whole: also where a retained one is drawn from
    nucleus_at: Callable[[int], Row]  # the nucleus at a node; its probabilities sum to its mass


def verify(
    tree: DraftTree,
    row_at: Callable[[int], Row],
    choices: Choices,
    position: int,
    stops: Callable[[int], bool] = lambda _: False,
    relaxing: Relaxing | None = None,
) -> Walk:
    """Walks the tree from the context down, testing siblings, until none is accepted or a leaf is passed.

    Ranked and coupled trees by sample-match: the target draws, and a draw that is a child is accepted. Whatever the
    tree, the emitted tokens are those of plain decoding under the same `choices`. Sampled trees (`tree.rows`) by
    recursive rejection, whose law is the target's.

    With `relaxing` the whole exact test comes first; only if it rejected every sibling is the most probable one in the
    nucleus accepted, if the limits allow it (relax last: the paper's rule for one candidate).

    Args:
        tree: the drafted tree; may be empty.
        row_at: the target's row at a node, or at the context for ROOT; asked lazily, once per visited node.
        choices: the outcomes of draws and tests.
        position: index in the full context of the first token to be emitted.
        stops: whether a token ends the reply. The walk ends with it, so nothing behind it counts as accepted.
        relaxing: None verifies exactly.
    """
    accepted: list[int] = []
    tokens: list[int] = []
    relaxed: list[int] = []
    ledger = Ledger() if relaxing is None else relaxing.ledger
    node = ROOT
    while True:
        row, children = row_at(node), tree.children(node)
        fallback: int | None = None
        if relaxing is not None and children:
            fallback, ledger = _fallback(tree, node, children, row, relaxing, ledger, relaxing.index + len(tokens))
        test = _recursive_rejection if tree.rows is not None and children else _sample_match
        child, token = test(tree, node, children, row, choices, position + len(tokens))
        if child is None and fallback is not None:
            child, token, ledger = fallback, int(tree.tokens[fallback]), ledger.fired()
            relaxed.append(len(tokens))
        tokens.append(token)
        if child is None:
            break
        accepted.append(child)
        if stops(token):
            break
        node = child
    return Walk(tuple(accepted), tuple(tokens), tuple(relaxed), ledger)


def retained(row: Row, tree: DraftTree, node: int) -> Row | None:
    """The row carried on when the token drawn at `node` is not emitted: `row` given that no child was drawn.

    None if nothing but children can be drawn, so that no draw had been outside them.
    Source: Lee et al., Understanding Target Probability Reuse, arXiv 2610.29210; the restriction is THEORY 5.
    """
    children = tree.tokens[tree.children(node)].tolist()
    if not children:
        return row
    if not np.setdiff1d(row.token_ids, children).size:
        return None
    return row.without(children)


def all_rejected(tree: DraftTree, node: int, children: Sequence[int], row: Row) -> float:
    """Chance that the exact test rejects every one of the siblings, given what they are."""
    siblings = tree.tokens[list(children)].tolist()
    if tree.rows is None:
        return max(0.0, 1.0 - float(row.probs[np.isin(row.token_ids, siblings)].sum(dtype=np.float64)))
    proposal = tree.rows[node + 1]
    assert proposal is not None, "checked: a node of a sampled tree with children has the row they were drawn from"
    accept_probs, _ = recursion(row, proposal, siblings)
    return float(np.prod([1.0 - each for each in accept_probs]))


def _sample_match(
    tree: DraftTree, node: int, children: Sequence[int], row: Row, choices: Choices, position: int
) -> tuple[int | None, int]:
    token = choices.draw(row, position)
    return next((child for child in children if tree.tokens[child] == token), None), token


def _recursive_rejection(
    tree: DraftTree, node: int, children: Sequence[int], row: Row, choices: Choices, position: int
) -> tuple[int | None, int]:
    assert tree.rows is not None
    proposal = tree.rows[node + 1]
    assert proposal is not None, "checked: a node of a sampled tree with children has the row they were drawn from"
    siblings = tree.tokens[list(children)].tolist()
    accept_probs, residual = recursion(row, proposal, siblings)
    for sibling, prob in enumerate(accept_probs):
        if choices.accept(prob, position, sibling):
            return children[sibling], siblings[sibling]
    return None, choices.draw(residual, position, Purpose.RESIDUAL)


def _fallback(
    tree: DraftTree, node: int, children: Sequence[int], row: Row, relaxing: Relaxing, ledger: Ledger, index: int
) -> tuple[int | None, Ledger]:
    """The child that would be accepted if all were rejected, None if there is none or a limit forbids it.

    `row` is the one that is drawn from. Below a retained one the whole row charges more than is rejected, unless a
    child was ruled out before: then it charges too little.
    """
    good = relaxing.nucleus_at(node)
    chances = {child: good.prob(int(tree.tokens[child])) for child in children}
    best = min(children, key=lambda child: (-chances[child], int(tree.tokens[child])))
    if not chances[best] > 0:
        return None, ledger
    full = relaxing.full_row_at(node)
    eps = all_rejected(tree, node, children, full)
    if row is not full:
        eps = max(eps, all_rejected(tree, node, children, row))
    if not eps > 0:
        return None, ledger
    allowed, ledger = ledger.allow(relaxing.rule, eps, index)
    return best if allowed else None, ledger
