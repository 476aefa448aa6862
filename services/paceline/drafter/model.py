"""The model proposer: any causal language model with the target's tokenizer, a level of the tree per pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.known_rows import ContextHash, KnownRows
from paceline.drafter.model_rows import CANDIDATES, Look, ModelRows
from paceline.drafter.proposer import DraftOptions, Growth, Want, children, draw_tree, known_children
from paceline.runtime.runner import ModelRunner
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import NO_CANDIDATES, Candidates
from paceline.speculation.rows import Row
from paceline.speculation.select import Path, best_first
from paceline.speculation.shape import grown_shape, looked_below, places
from paceline.speculation.tree import DraftTree

_NOTHING = Growth(DraftTree.empty())


@dataclass(slots=True)
class _Session:
    options: DraftOptions
    length: int  # of the context
    hash: ContextHash
    passes: int = 0  # below the context, for the tree under way
    starved: bool = False  # no page was free for another one
    made: dict[Path, Candidates] = field(default_factory=dict)  # candidates below paths, by the session's proposal


@dataclass(slots=True)
class _Growing:
    """A tree under way."""

    want: Want
    held: _Session
    tree: DraftTree = field(default_factory=DraftTree.empty)


class ModelProposer:
    """Grows trees level by level, all sessions in one pass; KV of emitted tokens that were drafted is kept."""

    name = "model"

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer_fingerprint: str,
        *,
        max_depth: int,
        width: int,
        step_tokens: int,
        min_path_prob: float,
        known: KnownRows | None = None,
    ) -> None:
        """Takes its model and bounds.

        Args:
            runner: the drafter's model.
            tokenizer_fingerprint: of its tokenizer.
            max_depth: levels of a tree, and passes it takes.
            width: nodes of a session that one pass looks below.
            step_tokens: most tokens in one pass.
            min_path_prob: nodes reached with less probability are not proposed.
            known: where rows of the target are kept; None keeps none.
        """
        self._known = KnownRows(0) if known is None else known
        self._rows = ModelRows(runner, step_tokens)
        self._vocab_size = runner.info.vocab_size
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.context_length = self._rows.context_length
        self._max_depth, self._width = max_depth, width
        self._min_log_score = math.log(min_path_prob) if min_path_prob > 0 else -math.inf
        self._sessions: dict[int, _Session] = {}

    def cached_length(self, session: int) -> int:
        """Tokens of the session's context whose keys and values are held."""
        return self._sessions[session].length - self._rows.missing(session)

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        """Starts a session; its context is run when a tree is first wanted."""
        self._rows.open(session, context, options)
        self._sessions[session] = _Session(options, len(context), ContextHash(options, context))

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens and keeps the KV of those that a drafted path holds."""
        self._rows.advance(session, tokens)
        held = self._sessions[session]
        here = held.made.get(tuple(tokens))
        held.length += len(tokens)
        held.made = {} if here is None else {(): here}
        held.passes, held.starved = 0, False
        held.hash.append(tokens)

    def close(self, session: int) -> None:
        """Ends a session."""
        del self._sessions[session]
        self._rows.close(session)

    def row(self, session: int, row: Row) -> None:
        """Keeps the target's row at the session's context, if it may; a tree under way goes on with it."""
        held = self._sessions[session]
        if held.options.teaches:
            self._known.keep(held.hash, row)
        if () in self._rows.below(session):
            held.made[()] = self._of_target(held, row, ())

    def propose(self, wants: Sequence[Want]) -> list[Growth | None]:
        """Trees of sessions whose context has been run, a level further than before; None for one that needs another
        call first, after one more chunk."""
        begun = {want.session for want in wants if () in self._rows.below(want.session)}
        starved = self._rows.run([Look(want.session) for want in wants]).starved
        ready = [want for want in wants if () in self._rows.below(want.session)]
        growing = [_Growing(want, self._sessions[want.session]) for want in ready if want.budget]
        self._grow([each for each in growing if each.want.session in begun])
        found: dict[int, Growth] = dict.fromkeys(starved, _NOTHING)
        found |= {want.session: _NOTHING for want in ready if want.budget == 0}
        for each in growing:
            each.tree = self._best(each)
            found[each.want.session] = Growth(each.tree, growing=self._unfinished(each))
        return [found.get(want.session) for want in wants]

    def _best(self, each: _Growing) -> DraftTree:
        """The tree of what was looked at so far."""
        held, budget = each.held, each.want.budget
        if held.options.sampled:
            shape = grown_shape(budget, self._max_depth, self._width, held.passes)
            return draw_tree(held.options, lambda path: self._drawn_from(each, path), held.length, shape)
        return best_first(
            lambda path: self._below(each, path) or NO_CANDIDATES, budget, self._max_depth, self._min_log_score
        )

    def _below(self, each: _Growing, path: Path) -> Candidates | None:
        """Candidates below a path: from the target's row if it is known, else the model's; None if not looked below."""
        held = each.held
        raw = self._rows.below(each.want.session).get(path)
        if raw is None:
            return None
        if path not in held.made:
            known = self._known.find(held.hash, path)
            position = held.length + len(path)
            held.made[path] = (
                children(held.options, raw.tokens.astype(np.int64), raw.log_probs, position, CANDIDATES)
                if known is None
                else self._of_target(held, known, path)
            )
        return held.made[path]

    def _of_target(self, held: _Session, row: Row, path: Path) -> Candidates:
        """Candidates from a row of the target, of tokens that can be looked below."""
        return known_children(held.options, row, held.length + len(path), CANDIDATES, self._vocab_size)

    def _drawn_from(self, each: _Growing, path: Path) -> ProposalRow | None:
        """The row that siblings below `path` are drawn from; None where nothing was looked at."""
        below = self._below(each, path)
        return None if below is None else ProposalRow.of(below.tokens, np.exp(below.log_probs), CANDIDATES)

    def _grow(self, growing: Sequence[_Growing]) -> None:
        """One pass below the best nodes of each tree that were not looked below, if there are any."""
        looks: list[tuple[_Growing, Look]] = []
        for each in growing:
            each.tree = self._best(each)
            wanted = [] if self._stopped(each.held) else self._frontier(each)
            looks.append((each, Look(each.want.session, wanted)))
        try:
            starved = self._rows.run([look for _, look in looks]).starved
        except Exception:
            for each, _ in looks:
                each.held.passes = 0
            raise
        for each, look in looks:
            below = self._rows.below(look.session)
            if look.session in starved:
                each.held.starved = True
            elif all(path in below for path in look.paths):  # also where no place of a sampled tree can have children
                each.held.passes += 1

    def _unfinished(self, each: _Growing) -> bool:
        """True if another pass can add to the tree."""
        if self._stopped(each.held):
            return False
        if each.held.options.sampled:
            now, then = (self._looked_below(each, each.held.passes + more) for more in (0, 1))
            return len(then) > len(now)
        return bool(self._frontier(each))

    def _stopped(self, held: _Session) -> bool:
        return held.starved or held.passes + 1 >= self._max_depth

    def _looked_below(self, each: _Growing, passes: int) -> frozenset[Path]:
        return looked_below(each.want.budget, self._max_depth, self._width, passes)

    def _frontier(self, each: _Growing) -> list[Path]:
        """The best nodes of the tree that were not looked below and may have children.

        A sampled tree's are those whose place has its turn.
        """
        session = each.want.session
        below = self._rows.below(session)
        paths: list[Path] = []
        full = len(each.tree) == each.want.budget
        nodes: Sequence[int] = range(len(each.tree) - full)  # below the last node of a full tree nothing is better
        if each.held.options.sampled:
            turn = self._looked_below(each, each.held.passes + 1)
            nodes = [node for node, place in enumerate(places(each.tree)) if place in turn]
        for node in nodes:
            path = tuple(each.tree.path_tokens(node))
            deeper = len(path) < self._max_depth and self._rows.may_look(session, path)
            if path not in below and deeper and path[-1] not in each.held.options.eos_token_ids:
                paths.append(path)
        return paths[: self._width]
