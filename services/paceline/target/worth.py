"""Which draft nodes are worth their place in a pass.

A node's worth is the chance that it is delivered: the product of the drafter's probabilities along its path, times how
far this session's drafter has been right so far. Nodes are taken in that order over all sessions as long as tokens
expected per second rise, by the measured seconds of passes. The choice changes speed, never tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.turn import Turn

UNKNOWN_PROB = 0.5  # of a node given its parent, where the drafter does not say


def path_probs(tree: DraftTree) -> NDArray[np.float64]:  # [nodes] float64
    """Chance of each node's path by the drafter's own probabilities."""
    given_parent = (
        np.full(len(tree), UNKNOWN_PROB) if tree.log_probs is None else np.exp(tree.log_probs.astype(np.float64))
    )
    probs = np.minimum(given_parent, 1.0)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            probs[node] *= probs[parent]
    return probs


def worthwhile(turns: Sequence[Turn], seconds: NDArray[np.float64], waited_s: float = 0.0) -> list[Turn]:
    """The turns with their trees cut to what pays; a tree cut to nothing counts as a fallback for load.

    The seconds that went by before the pass are part of what the tokens cost: with them a node that makes the pass alone
    less efficient may well make the round more so.

    Sampled trees stay whole: a cut that looks at what was drawn would bias them (THEORY 3, clause 3).

    Args:
        turns: of the next pass.
        seconds: [tokens + 1] float64, of a pass as it is run, padding included; for as many tokens as there are.
        waited_s: seconds since the pass before, trees being waited for.
    """
    drafted = [index for index, turn in enumerate(turns) if len(turn.tree) and turn.tree.rows is None]
    if not drafted:
        return list(turns)
    worths = [turns[index].session.calibration.factor * path_probs(turns[index].tree) for index in drafted]
    worth = np.minimum(np.concatenate(worths), 1.0)
    owner = np.repeat(np.arange(len(drafted)), [len(each) for each in worths])
    order = np.argsort(-worth, kind="stable")  # a path is never worth more than its parent, and comes after it on a tie
    # A held row is drawn from without a pass, but then the next row needs one: such a turn counts as a plain token.
    plain_tokens = sum(max(turn.chunk, 1) + (len(turn.tree) if turn.tree.rows is not None else 0) for turn in turns)
    times = seconds[plain_tokens : plain_tokens + len(order) + 1]
    gains = len(turns) + np.concatenate(([0.0], np.cumsum(worth[order])))
    rates = gains / (waited_s + times)
    taken = int(len(rates) - 1 - np.argmax(rates[::-1]))  # the largest of equals
    if taken == len(order):
        return list(turns)
    cut = list(turns)
    chosen = np.sort(order[:taken])
    starts = np.cumsum([0] + [len(each) for each in worths])
    for position, index in enumerate(drafted):
        nodes = (chosen[owner[chosen] == position] - starts[position]).tolist()
        turn = turns[index]
        if not nodes:
            cut[index] = replace(turn, tree=turn.tree.first(0), fallback=Fallback.LOAD)
        elif len(nodes) < len(turn.tree):
            cut[index] = replace(turn, tree=turn.tree.keep(nodes))
    return cut
