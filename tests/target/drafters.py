"""Drafters for tests: right, wrong, random, and answers that know the reply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.speculation.tree import DraftTree
from target.rig import Propose


def oracle(prompt: Sequence[int], reply: Sequence[int]) -> Propose:
    """Proposes what comes next, as a chain."""
    known = [*prompt, *reply]

    def propose(context: list[int], budget: int) -> DraftTree:
        assert known[: len(context)] == context
        return DraftTree.chain(known[len(context) : len(context) + budget])

    return propose


def accepting(prompt: Sequence[int], reply: Sequence[int], vocab: int, accepted: int) -> Propose:
    """Proposes what comes next for `accepted` tokens, then a token that does not."""
    known = [*prompt, *reply]

    def propose(context: list[int], budget: int) -> DraftTree:
        right = known[len(context) : len(context) + accepted]
        after = known[len(context) + len(right)] if len(context) + len(right) < len(known) else 0
        return DraftTree.chain([*right, (after + 1) % vocab][:budget])

    return propose


def random_trees(vocab: int, seed: int) -> Propose:
    """Any valid tree."""
    generator = np.random.default_rng(seed)

    def propose(context: list[int], budget: int) -> DraftTree:
        return random_tree(generator, vocab, int(generator.integers(0, budget + 1)))

    return propose


def random_tree(generator: np.random.Generator, vocab: int, nodes: int) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    taken: set[tuple[int, int]] = set()
    while len(tokens) < nodes:
        edge = (int(generator.integers(-1, len(tokens))), int(generator.integers(0, vocab)))
        if edge in taken:
            if len(taken) >= vocab:
                break
            continue
        taken.add(edge)
        parents.append(edge[0])
        tokens.append(edge[1])
    return DraftTree.build(tokens, parents)


def bushy(prompt: Sequence[int], reply: Sequence[int], vocab: int, seed: int) -> Propose:
    """The right path hidden among wrong siblings, in any order."""
    known = [*prompt, *reply]
    generator = np.random.default_rng(seed)

    def propose(context: list[int], budget: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for right in known[len(context) : len(context) + 3]:
            siblings = {right}
            while len(siblings) < min(3, vocab):
                siblings.add(int(generator.integers(0, vocab)))
            first = len(tokens)
            order = generator.permutation(sorted(siblings)).tolist()
            tokens += order
            parents += [parent] * len(order)
            parent = first + order.index(right)
        return DraftTree.build(tokens, parents).first(budget)

    return propose
