"""Rounds of drafting, selection and verification as THEORY 5 puts them, out of the implemented pieces and nothing else.

A round takes its randomness from `Choices`, so that a driver can walk every outcome and seeds can play one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from paceline.speculation.choices import Choices, SeededChoices
from paceline.speculation.modes import Selection
from paceline.speculation.noise import Purpose, propose_seed
from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.proposal_row import ProposalRow, sibling_key
from paceline.speculation.propose import Candidates, coupled, draft_noise_key, ranked
from paceline.speculation.rows import Row, nucleus
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path, best_first, rerank
from paceline.speculation.shape import sampled_tree, scheduled_shape
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, retained, verify
from paceline.study.outcomes import ScriptedChoices, ScriptedProposal, rounds
from speculation.languages import Context, Language

LARGER = 3  # candidates for each node of the budget, where the target prunes


class Propose(Protocol):
    """A drafter: the tree below a context."""

    def __call__(self, context: Context, budget: int, depth: int, choices: Choices) -> DraftTree: ...


class Reply(NamedTuple):
    """A reply in progress."""

    tokens: Context = ()
    spent: float = 0.0
    relaxed: int = 0
    held: tuple[tuple[int, float], ...] = ()  # retained row as (token, probability); empty if none is


@dataclass(frozen=True)
class Decoding:
    """How a reply is decoded, until `horizon` tokens or `stop`."""

    target: Language
    propose: Propose
    selection: Selection
    rule: Nucleus | None = None
    budget: int = 4
    horizon: int = 3
    stop: int | None = None

    def finished(self, reply: Reply) -> bool:
        return len(reply.tokens) >= self.horizon or self.stops_with(reply.tokens)

    def stops_with(self, tokens: Context) -> bool:
        return bool(tokens) and tokens[-1] == self.stop

    def round(self, reply: Reply, choices: Choices) -> Reply:
        """One round: a tree, shaped by the target's row as the rule says, and its verification."""
        context, left = reply.tokens, self.horizon - len(reply.tokens)
        held = Row(*map(np.asarray, zip(*reply.held, strict=True))) if reply.held else None
        if self.selection is Selection.DRAW_FIRST:
            older = self.propose(context, self.budget, left, choices)
            context += (choices.draw(self.target(context), len(context)),)
            if self.finished(Reply(context)):
                return reply._replace(tokens=context)
            below = older.below(context[-1:])
            tree = self.propose(context, self.budget, left - 1, choices) if below is None else below
        elif self.selection is Selection.DRAFT:
            tree = self.propose(context, self.budget, left, choices)
        else:
            larger = self.propose(context, LARGER * self.budget, left, choices)
            tree = rerank(larger, self.target(context) if held is None else held, self.budget)
        return self.verified(context, tree, held, reply, choices)

    def verified(self, context: Context, tree: DraftTree, held: Row | None, reply: Reply, choices: Choices) -> Reply:
        def full_row_at(node: int) -> Row:
            return self.target((*context, *(tree.path_tokens(node) if node != ROOT else ())))

        def row_at(node: int) -> Row:
            return held if held is not None and node == ROOT else full_row_at(node)

        relaxing = None
        if self.rule is not None:
            near = partial(_nucleus_at, full_row_at, self.rule.mass)
            ledger = Ledger(reply.spent, reply.relaxed)
            relaxing = Relaxing(self.rule, ledger, len(context), full_row_at, near)
        walk = verify(tree, row_at, choices, len(context), lambda token: token == self.stop, relaxing)
        after = Reply((*context, *walk.tokens), walk.ledger.spent, walk.ledger.relaxed)
        if self.selection is Selection.RETAIN and walk.accepted and walk.drawn is not None:
            kept = retained(row_at(walk.last), tree, walk.last)
            assert kept is not None, "the drawn token is outside the children"
            pairs = tuple(zip(kept.token_ids.tolist(), kept.probs.tolist(), strict=True))
            after = after._replace(tokens=after.tokens[:-1], held=pairs)
        return after._replace(tokens=after.tokens[: self.horizon])

    def laws(self) -> dict[Reply, float]:
        """Law of the finished reply, by walking every outcome."""
        return rounds(self.round, Reply(), self.finished)

    def played(self, choices: Choices) -> Reply:
        """One finished reply."""
        reply = Reply()
        while not self.finished(reply):
            reply = self.round(reply, choices)
        return reply


def _nucleus_at(row_at: Callable[[int], Row], mass: float, node: int) -> Row:
    return nucleus(row_at(node), mass)


def tokens_of(replies: dict[Reply, float]) -> dict[Context, float]:
    """Law of the tokens alone."""
    total: dict[Context, float] = {}
    for reply, probability in replies.items():
        total[reply.tokens] = total.get(reply.tokens, 0.0) + probability
    return total


def expected(replies: dict[Reply, float], value: Callable[[Reply], float]) -> float:
    """Expectation of `value`."""
    return math.fsum(value(reply) * probability for reply, probability in replies.items())


def ranked_drafter(drafter: Language) -> Propose:
    """Best-first trees of the drafter's most probable tokens."""

    def expand(context: Context, path: Path) -> Candidates:
        row = drafter((*context, *path))
        return ranked(row.token_ids, np.log(row.probs), len(row.token_ids))

    return lambda context, budget, depth, choices: best_first(partial(expand, context), budget, depth)


def coupled_drafter(drafter: Language, params: SamplingParams, strength: float = 2.0) -> Propose:
    """Best-first trees that look at the noise of the draws they guess."""

    def expand(context: Context, path: Path) -> Candidates:
        row, key = drafter((*context, *path)), draft_noise_key(params, len(context) + len(path))
        return coupled(row.token_ids, np.log(row.probs), key=key, strength=strength, width=3)

    return lambda context, budget, depth, choices: best_first(partial(expand, context), budget, depth)


def sampled_drafter(drafter: Language, largest: int = 8) -> Propose:
    """Trees of scheduled shape with siblings drawn: outcomes to walk, or draws under a request's noise."""

    def propose(context: Context, budget: int, depth: int, choices: Choices) -> DraftTree:
        def row_below(path: Path) -> ProposalRow:
            row = drafter((*context, *path))
            proposal = ProposalRow.of(row.token_ids, row.probs, largest)
            assert proposal is not None
            if isinstance(choices, ScriptedChoices):
                return ScriptedProposal(proposal.token_ids, proposal.weights, choices)
            return proposal

        return sampled_tree(scheduled_shape(budget, depth), row_below, partial(_key_at, choices, len(context)))

    return propose


def _key_at(choices: Choices, length: int, depth: int) -> int:
    if not isinstance(choices, SeededChoices):
        return 0  # scripted rows look at no key
    seed, choice = choices.params.seed, choices.params.choice
    return sibling_key(propose_seed(seed, choice), choice, length + depth - 1)


def seeded(seed: int, *, nucleus: bool = False) -> SeededChoices:
    """The choices of a request with that seed."""
    params = SamplingParams(temperature=1.0, seed=seed)
    return SeededChoices(params, Purpose.NUCLEUS if nucleus else Purpose.DRAW)
