"""Random languages for tests of laws: a target and a drafter of a few tokens, and what their replies should be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.speculation.choices import Choices
from paceline.speculation.rows import Row
from paceline.speculation.tree import DraftTree
from paceline.speculation.verify import verify

Context = tuple[int, ...]
Language = Callable[[Context], Row]


def language(vocab: int, seed: int, dtype: type = np.float64) -> Language:
    """A random distribution for each context, some tokens impossible."""
    rows: dict[Context, Row] = {}

    def row(context: Context) -> Row:
        if context not in rows:
            random = np.random.default_rng([seed, *context, len(context)])
            weights = random.random(vocab) * (random.random(vocab) > 0.2)
            weights[random.integers(vocab)] += 0.1
            rows[context] = Row.from_dense((weights / weights.sum()).astype(dtype))
        return rows[context]

    return row


def random_tree(random: np.random.Generator, vocab: int, nodes: int) -> DraftTree:
    tokens, parents = [], []
    for node in range(nodes):
        parent = int(random.integers(-1, node))
        free = [t for t in range(vocab) if (parent, t) not in set(zip(parents, tokens, strict=True))]
        if free:
            tokens.append(int(random.choice(free)))
            parents.append(parent)
        else:
            break
    return DraftTree.build(tokens, parents)


def rows_of(tree: DraftTree, row: Language, context: Context) -> Callable[[int], Row]:
    return lambda node: row((*context, *tree.path_tokens(node)))


def decode(row: Language, choices: Choices, horizon: int, draft: Callable[[Context], DraftTree]) -> Context:
    """Rounds of drafting and verification until `horizon` tokens are out."""
    context: Context = ()
    while len(context) < horizon:
        tree = draft(context)
        context += verify(tree, rows_of(tree, row, context), choices, len(context)).tokens
    return context[:horizon]


def plain(row: Language, choices: Choices, horizon: int) -> Context:
    return decode(row, choices, horizon, lambda _: DraftTree.empty())


def difference(first: dict[Context, float], second: dict[Context, float]) -> float:
    return max(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys())


def reference(row: Language, horizon: int, stop: int | None = None) -> dict[Context, float]:
    """The target's own law of the first `horizon` tokens, ended by `stop`, by the chain rule."""
    total: dict[Context, float] = {(): 1.0}
    for _ in range(horizon):
        following: dict[Context, float] = {}
        for context, probability in total.items():
            if context and context[-1] == stop:
                following[context] = probability
                continue
            for token, prob in zip(row(context).token_ids.tolist(), row(context).probs.tolist(), strict=True):
                following[(*context, token)] = probability * prob
        total = following
    return total
