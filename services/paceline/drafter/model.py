"""The model proposer: any causal language model with the target's tokenizer, a level of the tree per pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafter.known_rows import ContextHash, KnownRows
from paceline.drafter.proposer import (
    ContextTooLong,
    DraftOptions,
    Growth,
    NoSlot,
    UnknownTokens,
    Want,
    children,
    draw_tree,
    known_children,
)
from paceline.runtime.kv import OutOfPages
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner, PassRows
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import NO_CANDIDATES, Candidates
from paceline.speculation.rows import Row
from paceline.speculation.select import Path, best_first
from paceline.speculation.shape import grown_shape, looked_below, places
from paceline.speculation.tree import DraftTree

CANDIDATES = 64  # tokens of a row that are looked at
_NOTHING = Growth(DraftTree.empty())


@dataclass(slots=True)
class _Session:
    options: DraftOptions
    sequence: int  # KV sequence
    tokens: list[int]  # the context; the last ones may not be in the KV yet
    hash: ContextHash
    passes: int = 0  # below the context, for the tree under way
    starved: bool = False  # no page was free for another one
    scratch: dict[Path, int] = field(default_factory=dict)  # path -> node of the scratch, for nodes that were run
    below: dict[Path, Candidates] = field(default_factory=dict)  # candidates of nodes that were run; () is the context


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
        """Takes the model and its bounds.

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
        self._runner = runner
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.context_length = runner.info.context_length
        self._max_depth, self._width, self._step_tokens = max_depth, width, step_tokens
        self._min_log_score = math.log(min_path_prob) if min_path_prob > 0 else -math.inf
        self._sessions: dict[int, _Session] = {}

    def cached_length(self, session: int) -> int:
        """Tokens of the session's context whose keys and values are held."""
        return self._runner.kv.length(self._sessions[session].sequence)

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        """Starts a session; its context is run when a tree is first wanted."""
        self._check_length(len(context))
        self._check_tokens(int(context.max()))
        try:
            sequence = self._runner.kv.open(reserve_tokens=len(context))
        except OutOfPages as error:
            raise NoSlot(str(error)) from error
        self._sessions[session] = _Session(options, sequence, context.tolist(), ContextHash(options, context))

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens and keeps the KV of those that a drafted path holds."""
        held = self._sessions[session]
        self._check_length(len(held.tokens) + len(tokens))
        self._check_tokens(max(tokens))
        here = held.below.get(tuple(tokens))
        path: list[int] = []
        if self._runner.kv.length(held.sequence) == len(held.tokens):
            for end in range(1, len(tokens) + 1):
                node = held.scratch.get(tuple(tokens[:end]))
                if node is None:
                    break
                path.append(node)
        self._runner.kv.keep(held.sequence, path)
        held.tokens.extend(tokens)
        held.scratch, held.below = {}, {} if here is None else {(): here}
        held.passes, held.starved = 0, False
        held.hash.append(tokens)

    def close(self, session: int) -> None:
        """Ends a session."""
        self._runner.kv.release(self._sessions.pop(session).sequence)

    def row(self, session: int, row: Row) -> None:
        """Keeps the target's row at the session's context, if it may; a tree under way goes on with it."""
        held = self._sessions[session]
        if held.options.teaches:
            self._known.keep(held.hash, row)
        if () in held.below:
            held.below[()] = self._of_target(held, row, len(held.tokens))

    def propose(self, wants: Sequence[Want]) -> list[Growth | None]:
        """Trees of sessions whose context has been run, a level further than before; None for one that needs another
        call first, after one more chunk."""
        begun = {want.session for want in wants if () in self._sessions[want.session].below}
        starved = self._catch_up(wants)
        ready = [(want, held) for want in wants if () in (held := self._sessions[want.session]).below]
        growing = [_Growing(want, held) for want, held in ready if want.budget]
        self._grow([each for each in growing if each.want.session in begun])
        found: dict[int, Growth] = dict.fromkeys(starved, _NOTHING)
        found |= {want.session: _NOTHING for want, _ in ready if want.budget == 0}
        for each in growing:
            each.tree = self._best(each)
            found[each.want.session] = Growth(each.tree, growing=self._unfinished(each))
        return [found.get(want.session) for want in wants]

    def _best(self, each: _Growing) -> DraftTree:
        """The tree of what was looked at so far."""
        held, budget = each.held, each.want.budget
        if held.options.sampled:
            shape = grown_shape(budget, self._max_depth, self._width, held.passes)
            return draw_tree(held.options, lambda path: _drawn_from(held, path), len(held.tokens), shape)
        return best_first(
            lambda path: held.below.get(path, NO_CANDIDATES), budget, self._max_depth, self._min_log_score
        )

    def _check_length(self, length: int) -> None:
        if length > self.context_length:
            raise ContextTooLong(f"the context has {length} tokens, the drafter's limit is {self.context_length}")

    def _check_tokens(self, highest: int) -> None:
        """An id without an embedding would fail a whole pass, and with it sessions of others."""
        count = self._runner.info.vocab_padded
        if highest >= count:
            raise UnknownTokens(f"the context holds token {highest}, the drafter's model has {count}")

    def _catch_up(self, wants: Sequence[Want]) -> list[int]:
        """One pass over context tokens that are not in the KV: short remainders first, so that long prompts wait.

        Returns:
            Sessions for which no KV page is free now.
        """
        kv = self._runner.kv
        named = [(want.session, self._sessions[want.session]) for want in wants]
        missing = [(len(held.tokens) - kv.length(held.sequence), session, held) for session, held in named]
        room = self._step_tokens
        segments: list[Segment] = []
        running: list[tuple[_Session, bool]] = []
        starved: list[int] = []
        for count, session, held in sorted(missing, key=lambda each: each[:2]):
            done = len(held.tokens) - count
            chunk = min(count, room)
            if chunk == 0:
                continue
            if not self._reserve(held, done + chunk):
                starved.append(session)
                continue
            room -= chunk
            segments.append(Segment.chain(held.sequence, held.tokens[done : done + chunk], last_row=chunk == count))
            running.append((held, chunk == count))
        if not segments:
            return starved
        rows = self._runner.execute(PassPlan(tuple(segments)))
        for number, ((held, complete), segment) in enumerate(zip(running, segments, strict=True)):
            kv.keep(held.sequence, range(len(segment)))
            if complete:
                held.below[()] = self._candidates(held, rows, number, len(segment) - 1, len(held.tokens), ())
        return starved

    def _grow(self, growing: Sequence[_Growing]) -> None:
        """One pass below the best nodes of each tree that were not looked below, if there are any."""
        segments: list[Segment] = []
        running: list[tuple[_Growing, list[Path]]] = []
        room = self._step_tokens
        for each in growing:
            each.tree = self._best(each)
            wanted = [] if self._stopped(each.held) else self._frontier(each)
            paths = wanted[:room]
            base = len(each.held.scratch)
            if not self._reserve(each.held, len(each.held.tokens) + base + len(paths)):
                each.held.starved = True
                continue
            each.held.passes += len(paths) == len(wanted)  # also where no place of a sampled tree can have children
            room -= len(paths)
            if not paths:
                continue
            parents = [each.held.scratch.get(path[:-1], -1) for path in (*each.held.scratch, *paths)]
            segments.append(
                Segment(
                    each.held.sequence,
                    np.asarray([path[-1] for path in paths], dtype=np.int32),
                    np.asarray(parents, dtype=np.int32),
                    tuple(range(base, base + len(paths))),
                )
            )
            running.append((each, paths))
        if not segments:
            return
        try:
            rows = self._runner.execute(PassPlan(tuple(segments)))
        except Exception:
            for each, _ in running:  # a failed pass empties their scratch
                each.held.scratch, each.held.below, each.held.passes = {}, {(): each.held.below[()]}, 0
            raise
        for number, (each, paths) in enumerate(running):
            for path in paths:
                node = len(each.held.scratch)
                each.held.scratch[path] = node
                position = len(each.held.tokens) + len(path)
                each.held.below[path] = self._candidates(each.held, rows, number, node, position, path)

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
        paths: list[Path] = []
        full = len(each.tree) == each.want.budget
        nodes: Sequence[int] = range(len(each.tree) - full)  # below the last node of a full tree nothing is better
        if each.held.options.sampled:
            turn = self._looked_below(each, each.held.passes + 1)
            nodes = [node for node, place in enumerate(places(each.tree)) if place in turn]
        for node in nodes:
            path = tuple(each.tree.path_tokens(node))
            deeper = len(path) < self._max_depth and len(each.held.tokens) + len(path) < self.context_length
            if path not in each.held.below and deeper and path[-1] not in each.held.options.eos_token_ids:
                paths.append(path)
        return paths[: self._width]

    def _reserve(self, held: _Session, tokens: int) -> bool:
        try:
            self._runner.kv.reserve(held.sequence, tokens)
        except OutOfPages:
            return False
        return True

    def _candidates(
        self, held: _Session, rows: PassRows, segment: int, node: int, position: int, path: Path
    ) -> Candidates:
        """Candidates below a node: from the target's row if it is known, else from logits; none if not finite."""
        known = self._known.find(held.hash, path)
        if known is not None:
            return self._of_target(held, known, position)
        options = held.options
        logits = rows.logits(segment, node)[: min(options.vocab_size, self._runner.info.vocab_size)]
        if not options.sampling.greedy:
            logits = logits / options.sampling.temperature
        top = torch.topk(logits, min(CANDIDATES, len(logits)))
        total = torch.logsumexp(logits, dim=0)
        log_probs = (top.values - total).double().cpu().numpy()
        if not math.isfinite(float(total)):
            return NO_CANDIDATES
        kept = _served(log_probs, options)
        return children(options, top.indices.cpu().numpy()[:kept], log_probs[:kept], position, CANDIDATES)

    def _of_target(self, held: _Session, row: Row, position: int) -> Candidates:
        """Candidates from a row of the target, of tokens that can be looked below."""
        return known_children(held.options, row, position, CANDIDATES, self._runner.info.vocab_size)


def _drawn_from(held: _Session, path: Path) -> ProposalRow | None:
    """The row that siblings below `path` are drawn from; None where nothing was looked at."""
    below = held.below.get(path)
    return None if below is None else ProposalRow.of(below.tokens, np.exp(below.log_probs), CANDIDATES)


def _served(log_probs: NDArray[np.float64], options: DraftOptions) -> int:
    """How many of the leading tokens the request's top-k and top-p leave."""
    kept = len(log_probs)
    if options.sampling.top_k and not options.sampling.greedy:
        kept = min(kept, options.sampling.top_k)
    if options.sampling.top_p < 1.0 and not options.sampling.greedy:
        kept = min(kept, int(np.searchsorted(np.cumsum(np.exp(log_probs)), options.sampling.top_p)) + 1)
    return kept
