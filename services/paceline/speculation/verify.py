"""Exact verification of ranked and coupled trees: sample-match (THEORY 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.speculation.choices import Choices
from paceline.speculation.rows import Row
from paceline.speculation.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """Outcome of a walk. `tokens` are what is emitted; the first `len(accepted)` of them are draft tokens."""

    accepted: tuple[int, ...]  # accepted nodes, from the first level down
    tokens: tuple[int, ...]  # emitted tokens; never empty

    @property
    def drawn(self) -> int | None:
        """The token the target added itself; None if the walk ended on an accepted stop token."""
        return self.tokens[-1] if len(self.tokens) > len(self.accepted) else None


def sample_match(
    tree: DraftTree,
    row_at: Callable[[int], Row],
    choices: Choices,
    position: int,
    stops: Callable[[int], bool] = lambda _: False,
) -> Walk:
    """Walks the tree by the target's own draws: a draw that is a child is accepted, any other ends the walk.

    Whatever the tree, the emitted tokens are those of plain decoding under the same `choices`.

    Args:
        tree: the drafted tree; may be empty.
        row_at: the target's row at a node, or at the context for ROOT; asked lazily, once per visited node.
        choices: the outcomes of draws.
        position: index in the full context of the first token to be emitted.
        stops: whether a token ends the reply. The walk ends with it, so nothing behind it counts as accepted.
    """
    accepted: list[int] = []
    tokens: list[int] = []
    node = ROOT
    while True:
        token = choices.draw(row_at(node), position + len(tokens))
        tokens.append(token)
        child = tree.child(node, token)
        if child is None:
            return Walk(tuple(accepted), tuple(tokens))
        accepted.append(child)
        if stops(token):
            return Walk(tuple(accepted), tuple(tokens))
        node = child
