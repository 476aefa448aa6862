"""A round, as steps that know no transport. The rule `draft`:

1. Context c is committed; its last token is pending, it has no KV yet.
2. The drafter is told what was emitted and asked for a tree below c (`ask`).
3. The round waits for that tree until its deadline; what is left of an earlier tree serves instead, or none (`choose`).
4. One pass computes [pending + tree], packed with the turns of other sessions (`segment`, the batch loop).
5. The walk draws along the tree; the accepted path stays in KV; accepted and drawn tokens are emitted (`settle`).
   Back to 1.

Reading the prompt is the same round with more pending tokens and no tree; its last row gives the first draw. Other
selection rules are other orders of these steps: a row pass is a turn without a tree, taken before the tree is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.runtime.kv import KVCache
from paceline.runtime.runner import PassRows
from paceline.speculation.rows import Row, process
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Walk, verify
from paceline.target.ending import Delivery
from paceline.target.fallback import Fallback
from paceline.target.port import Advance, Open
from paceline.target.session import Session
from paceline.target.turn import Turn, Wait


class SelectionRule(Protocol):
    """Decides what a session does next."""

    def choose(self, session: Session, committed: int, budget: int, now: float, hold_until: float) -> Turn | Wait:
        """The session's turn in the next pass, or how long it waits; never beyond `hold_until`."""


class DraftRule:
    """Wait for the tree, then verify it."""

    def choose(self, session: Session, committed: int, budget: int, now: float, hold_until: float) -> Turn | Wait:
        """Steps 3 and 4. `budget` is what load allows of the session's wish."""
        length = len(session.context)
        pending = length - committed
        depth = session.useful_depth
        first = session.rounds == 0  # the first token waits for nobody
        if first or depth == 0 or session.request.wish.budget == 0:
            return Turn(session, pending, pending)
        if budget == 0:
            return Turn(session, pending, pending, fallback=Fallback.LOAD)
        nodes = min(budget, session.request.wish.budget)
        drafting = session.drafting
        tree = drafting.fresh(length)
        if tree is not None:
            return Turn(session, pending, pending, fit(tree, nodes, depth))
        deadline = drafting.expected_by(length)
        if deadline is not None and now < min(deadline, hold_until):
            return Wait(min(deadline, hold_until))
        tree = drafting.late()
        if tree is not None:
            return Turn(session, pending, pending, fit(tree, nodes, depth))
        return Turn(session, pending, pending, fallback=drafting.reason())


def fit(tree: DraftTree, nodes: int, depth: int) -> DraftTree:
    """The leading `nodes` of a tree, without those deeper than `depth`."""
    tree = tree.first(nodes)
    if len(tree) and int(tree.depths.max()) > depth:
        tree = tree.keep([node for node, each in enumerate(tree.depths.tolist()) if each <= depth])
    return tree


def ask(session: Session, budget: int, eos: tuple[int, ...], learn: bool, now: float) -> Open | Advance | None:
    """Step 2: what to tell the drafter now, if anything. While the prompt is read no tree is asked for."""
    if session.request.wish.budget == 0 or session.useful_depth == 0:
        return None
    budget = 0 if session.rounds == 0 else min(budget, session.request.wish.budget)
    return session.drafting.update(session.id, session.context, eos, learn, budget, now)


def walk(turn: Turn, rows: PassRows, segment: int, vocab_size: int) -> Walk:
    """Step 5: the accepted path and the drawn token. Rows are processed only where the walk comes by."""
    session = turn.session
    first = turn.chunk  # segment node of the tree's first node

    def row_at(node: int) -> Row:
        return process(
            rows.logits(segment, first + node if node != ROOT else first - 1), session.request.sampling, vocab_size
        )

    return verify(turn.tree, row_at, session.choices, len(session.context), session.ending.is_eos)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a round left behind."""

    delivery: Delivery
    accepted: int  # draft tokens delivered


def settle(turn: Turn, outcome: Walk, kv: KVCache, now: float) -> Settled:
    """Step 5: keeps the accepted path's KV, cuts the tokens where the reply ends, and moves the context on."""
    session = turn.session
    assert session.sequence is not None
    kv.keep(session.sequence, [*range(turn.chunk), *(turn.chunk + node for node in outcome.accepted)])
    delivery = session.ending.cut(outcome.tokens)
    session.context.append(delivery.tokens)
    session.drafting.moved(delivery.tokens)
    accepted = min(len(outcome.accepted), len(delivery.tokens))
    session.rounds += 1
    session.drafted += len(turn.tree)
    session.accepted += accepted
    if turn.fallback is not None:
        session.fallbacks[turn.fallback] += 1
    if session.first_token_at is None:
        session.first_token_at = now
    return Settled(delivery, accepted)
