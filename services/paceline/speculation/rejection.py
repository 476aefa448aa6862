"""Recursive rejection: the exact test of siblings that were drawn from a row of the drafter (THEORY 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row


def recursion(row: Row, proposal: ProposalRow, siblings: Sequence[int]) -> tuple[list[float], Row]:
    """Acceptance probability of each sibling given that those before it were rejected, and what is left after all.

    p_1 = p, q_1 = q; sibling x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)); otherwise
    p_{i+1} = norm(max(p_i - q_i, 0)), and q_{i+1} is q_i without x_i, renormalised.

    Args:
        row: the target's row p.
        proposal: the row q that the siblings were drawn from, without replacement.
        siblings: tokens in drawn order, each in `proposal`.

    Returns:
        (probabilities, residual). A residual that rounding has emptied is the last one that was not.
    """
    target_probs = row.probs.astype(np.float64)
    weights = proposal.weights.astype(np.float64)
    place = np.searchsorted(row.token_ids, proposal.token_ids)
    place[place == len(row.token_ids)] = 0
    shared = row.token_ids[place] == proposal.token_ids  # proposed tokens that the target could emit
    accept_probs: list[float] = []
    for token in siblings:
        draft_probs = weights / weights.sum()
        drawn = int(np.flatnonzero(proposal.token_ids == token)[0])
        target_prob = float(target_probs[place[drawn]]) if shared[drawn] else 0.0
        accept_probs.append(min(1.0, target_prob / float(draft_probs[drawn])))
        reduced = target_probs.copy()
        reduced[place[shared]] -= draft_probs[shared]
        np.maximum(reduced, 0.0, out=reduced)
        total = float(reduced.sum())
        if total > 0:
            target_probs = reduced / total
        weights[drawn] = 0.0
        if not weights.any():
            break  # the row is used up; siblings are no more than its tokens
    left = target_probs > 0
    return accept_probs, Row(row.token_ids[left], target_probs[left])
