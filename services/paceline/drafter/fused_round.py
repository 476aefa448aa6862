"""A fused proposer's tree under way: what it promises, and where the model could look next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from paceline.drafter.blend import Blend, Members
from paceline.drafter.looks import Place
from paceline.speculation.select import Path
from paceline.speculation.tree import ROOT, DraftTree


@dataclass(slots=True)
class Round:
    """A tree under way."""

    budget: int
    tree: DraftTree = field(default_factory=DraftTree.empty)
    reaches: list[tuple[Path, float]] = field(default_factory=list)  # path and probability of each node
    paths: list[Path] = field(default_factory=list)  # looked below in the next pass; () is the context
    places: list[Place] = field(default_factory=list)  # of `paths`
    tokens: int = 0  # of the session in that pass
    passes: int = 0  # made for it
    spent_s: float = 0.0  # of them

    def grow(self, tree: DraftTree) -> None:
        """The tree has become this one, of merged candidates."""
        self.tree, self.reaches = tree, list(_reaches(tree))

    @property
    def expected(self) -> float:
        """Accepted tokens that are expected of the tree."""
        return sum(reach for _, reach in self.reaches)

    def frontier(
        self, blend: Blend, members: Members, max_depth: int, may_look: Callable[[Path], bool]
    ) -> tuple[list[Path], list[Place]]:
        """The context and nodes that the model has not looked below, the most probable first, and what is known there.

        Parents come before their children, and those that may not be looked below have none.
        """
        paths: list[Path] = []
        if () not in members.model and not blend.is_known(()) and may_look(()):
            paths.append(())
        reach = {(): 1.0} | dict(self.reaches)
        for path, _ in self.reaches:
            inner = len(path) < max_depth and path[-1] not in blend.options.eos_token_ids
            if inner and path not in members.model and may_look(path):
                paths.append(path)
        return paths, [Place(reach[path], 1.0 if blend.is_known(path) else blend.sure(path)) for path in paths]


def same_nodes(tree: DraftTree, other: DraftTree) -> bool:
    """True if both have the same nodes in the same order, whatever their probabilities."""
    return np.array_equal(tree.tokens, other.tokens) and np.array_equal(tree.parents, other.parents)


def _reaches(tree: DraftTree) -> Iterator[tuple[Path, float]]:
    assert tree.log_probs is not None, "merged trees carry log-probabilities"
    paths: list[Path] = []
    scores: list[float] = []
    given = tree.log_probs.tolist()
    for token, parent, log_prob in zip(tree.tokens.tolist(), tree.parents.tolist(), given, strict=True):
        paths.append((*(() if parent == ROOT else paths[parent]), token))
        scores.append(log_prob + (0.0 if parent == ROOT else scores[parent]))
        yield paths[-1], math.exp(scores[-1])
