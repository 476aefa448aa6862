"""A round, as steps that know no transport (THEORY 5). `draft`, and `draw_first` where it differs:

1. Context c is committed; its last token is pending, it has no KV yet. The rule of the round is chosen (`begin`).
2. The drafter is told what was emitted and asked for a tree below c (`ask`).
   draw_first: meanwhile a row pass computes the pending token, draws y from its row and emits it; the drafter is told
   y and its row, and goes on below y; what it had sent before is cut to the part below y. Where drafting takes long a
   larger tree is asked for, and if it is whole by then, what is left of it below y is used at once.
3. The round waits for that tree as the request wishes; what is left of an earlier tree serves instead, or none.
   draw_first: a tree that does not come in time is a row pass again.
4. One pass computes [pending + tree], packed with the turns of other sessions (`segment`, the batch loop).
5. The walk draws along the tree (`walk`); the accepted path stays in KV; accepted and drawn tokens are emitted
   (`settle`). Back to 1.

`rerank`: the row pass of step 2 draws nothing; its row is held, and prunes a larger tree in step 3. The pass of step 4
has no pending token then. `retain`: if the walk accepted a token, the one it drew is not emitted; the row at the last
accepted token, without its children, is held for the next round, which is as `rerank` without a row pass.

Reading the prompt is the same round with more pending tokens and no tree; its last row gives the first draw, unless the
row cache has it. Of sessions with the same prompt one reads it for all (`SharedPrompts`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from paceline.runtime.costs import PassCosts
from paceline.runtime.kv import KVCache
from paceline.runtime.runner import PassRows
from paceline.speculation.modes import Selection, WaitFor
from paceline.speculation.propose import draft_noise_key, tilted
from paceline.speculation.rows import Row
from paceline.speculation.select import rerank
from paceline.speculation.shape import cut
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, Walk, retained, verify
from paceline.target.ending import Delivery
from paceline.target.fallback import Fallback
from paceline.target.pace import Chosen
from paceline.target.port import Advance, Open, RowTold
from paceline.target.request import CANDIDATES
from paceline.target.row_cache import RowCache
from paceline.target.served import HeldRow, ServedRows
from paceline.target.session import RoundState, Session
from paceline.target.turn import NOTHING, Step, Turn, Wait

PLAIN = "plain"  # rule of rounds for which no tree is wanted
AS_ASKED = ""  # the reason of a rule that the request named


@dataclass(frozen=True, slots=True)
class Moment:
    """What a choice depends on beside the session."""

    now: float  # seconds on the engine's clock
    budget: int  # draft nodes that load allows a session
    hold_until: float  # the loop waits for trees no longer than this
    loaded: bool  # other sessions fill the time in which this one's target would idle


class SelectionRule(Protocol):
    """Decides what a session does next."""

    def begin(self, session: Session, moment: Moment) -> None:
        """Step 1, where no round is under way."""

    def choose(self, session: Session, committed: int, moment: Moment) -> Turn | Wait:
        """The session's turn in the next pass, or how long it waits."""


class Rounds:
    """The four rules, and `auto` over them."""

    def __init__(self, costs: PassCosts, cache: RowCache) -> None:
        """`costs` are the measured seconds of passes."""
        self._costs, self._cache = costs, cache

    def begin(self, session: Session, moment: Moment) -> None:
        """Step 1."""
        state, wish = session.round, session.request.wish
        if state is not None:
            if state.focused and state.slow and not state.enough:
                state.enough = session.drafting.late() is not None and not session.drafting.growing
            return
        chosen, nodes = Chosen(wish.selection, AS_ASKED), session.grant.nodes
        if wish.selection is Selection.AUTO:
            chosen = Chosen(Selection.DRAFT, "no tree is asked for")
            if nodes or not wish.auto:
                chosen = session.pace.choose(self._costs, nodes, loaded=moment.loaded)
        session.round = RoundState(chosen, moment.now, slow=session.pace.slow(self._costs))

    def choose(self, session: Session, committed: int, moment: Moment) -> Turn | Wait:
        """Steps 3 and 4."""
        pending, held = len(session.context) - committed, session.held
        chunk = 0 if held is not None else pending
        if session.rounds == 0:
            known = held or self._cache.find(session.request, session.context.copy(0))
            if known is not None:
                return Turn(session, pending, 0, held=known, row_hit=True)
        if session.rounds == 0 or pending > 1:  # the first token waits for nobody
            return Turn(session, pending, chunk, held=held)
        if session.useful_depth == 0 or session.grant.nodes == 0:
            return Turn(session, pending, chunk, held=held)
        if session.untrusted:
            return Turn(session, pending, chunk, fallback=Fallback.INVALID, held=held)
        if moment.budget == 0:
            return Turn(session, pending, chunk, fallback=Fallback.LOAD, held=held)
        state = session.round
        assert state is not None, "a round begins before its turns"
        if state.chosen.rule is Selection.DRAW_FIRST and not state.focused:
            return Turn(session, pending, chunk, step=Step.DRAW)
        if state.chosen.rule is Selection.RERANK and held is None:
            return Turn(session, pending, chunk, step=Step.HOLD)
        tree = self._tree(session, moment)
        if isinstance(tree, Wait):
            return tree
        if tree is None:
            step = Step.DRAW if state.focused else Step.VERIFY
            return Turn(session, pending, chunk, fallback=_missing(session, moment), step=step, held=held)
        nodes = min(moment.budget, session.grant.nodes)
        by = None if held is None else _pruned_by(session, held)
        return Turn(session, pending, chunk, fit(tree, nodes, session.useful_depth, by), held=held)

    def _tree(self, session: Session, moment: Moment) -> DraftTree | Wait | None:
        """Step 3; None if there is none."""
        drafting, length = session.drafting, len(session.context)
        tree = drafting.fresh(length)
        if tree is not None:
            return tree
        if never_waits(session, moment) or (session.round is not None and session.round.enough):
            return drafting.late()
        until = drafting.expected_by(length)
        if until is not None:
            ready_by = min(until, moment.hold_until, drafting.others_wait_until())
            last = until if session.request.wish.own_deadline else ready_by
            if moment.now < last:
                return Wait(last, ready_by)
        return drafting.late()


def never_waits(session: Session, moment: Moment) -> bool:
    """A pass while the tree is on its way is free only while the target would idle."""
    return session.request.wish.wait is WaitFor.NEVER and not moment.loaded


def _missing(session: Session, moment: Moment) -> Fallback | None:
    """Why there is no tree; None where the target draws on by choice and the drafter is well."""
    reason = session.drafting.reason()
    return None if reason is Fallback.LATE and never_waits(session, moment) else reason


def _pruned_by(session: Session, held: HeldRow) -> Row:
    """The row that first tokens are scored by: a coupled tree follows the noise, and so does its pruning."""
    if not session.request.wish.coupled:
        return held.row
    return tilted(held.row, draft_noise_key(session.request.sampling, len(session.context)))


def fit(tree: DraftTree, nodes: int, depth: int, row: Row | None = None) -> DraftTree:
    """The leading `nodes` of a tree, without those deeper than `depth`; the best by `row`, if there is one."""
    if tree.rows is not None:
        return cut(tree, nodes, depth)
    if len(tree) and int(tree.depths.max()) > depth:
        tree = tree.keep([node for node, each in enumerate(tree.depths.tolist()) if each <= depth])
    if row is not None and tree.log_probs is not None:
        return rerank(tree, row, nodes)
    return tree.first(nodes)


def ask(
    session: Session, budget: int, eos: tuple[int, ...], learn: bool, now: float
) -> Open | Advance | RowTold | None:
    """Step 2: what to tell the drafter now, if anything. While the prompt is read no tree is asked for.

    A tree that is only followed is asked for as any other; nobody waits for it, since the round is plain.
    """
    wish, state, grant = session.request.wish, session.round, session.grant
    if wish.budget == 0 or session.useful_depth == 0 or session.untrusted:
        return None
    budget = 0 if session.rounds == 0 else min(budget, grant.nodes or grant.probe)
    if budget == 0 and not grant.opens and not session.drafting.held:
        return None
    if state is not None and grant.nodes:
        if state.enough:
            budget = 0
        elif state.chosen.rule is Selection.RERANK or session.held is not None:
            budget *= CANDIDATES
        elif state.chosen.rule is Selection.DRAW_FIRST and state.slow and not state.focused:
            budget *= CANDIDATES  # enough should be left below the token that is drawn
    learn = learn and session.request.teaches
    return session.drafting.update(session.id, session.context, eos, learn, budget, now)


def walk(turn: Turn, served: ServedRows) -> Walk:
    """Step 5: the accepted path and the drawn token. Rows are processed only where the walk comes by."""
    session, rule = turn.session, turn.session.request.nucleus
    relaxing = None
    if rule is not None:
        relaxing = Relaxing(rule, session.ledger, session.context.reply_length, served.full, served.nucleus)
    return verify(
        turn.tree, served.row, session.choices, len(session.context), session.ending.is_eos, relaxing=relaxing
    )


def rows_of(turn: Turn, rows: PassRows | None, segment: int, vocab_size: int) -> ServedRows:
    """The rows of a turn; `rows` is None where nothing had to be computed."""
    first = turn.chunk  # segment node of the tree's first node

    def logits(node: int) -> torch.Tensor:
        assert rows is not None, "a turn without a pass holds its row"
        return rows.logits(segment, first + node)  # ROOT is the node before the tree's first

    return ServedRows(turn.session.request, vocab_size, logits, turn.held)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a turn left behind."""

    delivery: Delivery
    rule: str  # selection rule of the round, "plain" where no tree was wanted
    accepted: int  # draft tokens delivered
    relaxed: tuple[int, ...]  # accepted nodes that only the nucleus rule accepted
    held_back: bool  # whether the drawn token was not emitted


def hold(turn: Turn, served: ServedRows, kv: KVCache) -> None:
    """The end of a row pass that draws nothing: the pending token is committed, its row is held."""
    session = turn.session
    assert session.sequence is not None
    session.held = served.held(ROOT)
    kv.keep(session.sequence, range(turn.chunk))
    session.row_passes += 1
    session.drafting.tell_row(len(session.context), None, session.held.full)


def settle(turn: Turn, outcome: Walk, served: ServedRows, kv: KVCache, now: float) -> Settled:
    """Step 5: keeps the accepted path's KV, cuts the tokens where the reply ends, and moves the context on."""
    session, state, rule = turn.session, turn.session.round, _rule_of(turn)
    assert session.sequence is not None
    assert state is not None
    kept = _held_for_next(turn, outcome, served)
    tokens = outcome.tokens if kept is None else outcome.tokens[:-1]
    kv.keep(session.sequence, [*range(turn.chunk), *(turn.chunk + node for node in outcome.accepted)])
    delivery = session.ending.cut(tokens)
    if turn.step is Step.DRAW:
        session.drafting.tell_row(len(session.context), tokens[0], served.full(ROOT))
        session.row_passes += 1
    session.context.append(delivery.tokens)
    session.drafting.moved(delivery.tokens)
    session.held = kept
    accepted = min(len(outcome.accepted), len(delivery.tokens))
    relaxed = tuple(outcome.accepted[index] for index in outcome.relaxed if index < accepted)
    session.rounds += 1
    session.drafted += len(turn.tree)
    session.accepted += accepted
    session.relaxed += len(relaxed)
    if len(turn.tree):
        session.drafting.walked(accepted)
    session.ledger = outcome.ledger if session.request.nucleus is not None else session.ledger
    session.held_back += kept is not None
    session.row_hits += turn.row_hit
    if turn.fallback is not None:
        session.fallbacks[turn.fallback] += 1
    if session.first_token_at is None:
        session.first_token_at = now
    _advance_round(turn, state, rule, len(delivery.tokens), accepted, now)
    return Settled(delivery, rule, accepted, relaxed, kept is not None)


def _held_for_next(turn: Turn, outcome: Walk, served: ServedRows) -> HeldRow | None:
    """`retain`: the row to carry on, if the drawn token is not emitted for it. With no token accepted it is emitted."""
    state = turn.session.round
    if state is None or state.chosen.rule is not Selection.RETAIN or not outcome.accepted or outcome.drawn is None:
        return None
    kept = served.held(outcome.last)
    row = retained(kept.full, turn.tree, outcome.last)
    return None if row is None else replace(kept, row=row)


def _rule_of(turn: Turn) -> str:
    """Selection rule of the round that a turn is part of; "plain" where no tree is wanted. Ask before settling it."""
    session = turn.session
    assert session.round is not None, "a round begins before its turns"
    wanted = session.grant.nodes > 0 and turn.chunk <= 1 and session.rounds > 0
    return str(session.round.chosen.rule) if wanted else PLAIN


def _advance_round(turn: Turn, state: RoundState, rule: str, tokens: int, accepted: int, now: float) -> None:
    session = turn.session
    state.emitted += tokens
    if turn.step is Step.DRAW:
        state.focused = True
        return
    session.selections[rule] += 1
    if session.request.wish.auto and session.rounds > 1:
        session.budgets[session.grant.nodes] += 1
    if rule != PLAIN:
        hit = None if turn.tree is NOTHING else accepted
        session.pace.learn(state.chosen.rule, state.emitted, hit, now - state.began_at)
    session.round = None
