"""A drafter model's rows below the contexts of sessions: their KV, what is read, and what is looked below.

Every pass takes, for each session, the part of its context that was not run yet and the ends of paths below it, so that
a path that somebody else has guessed costs no pass of its own. Where a pass did both, the context's tokens stay in the
scratch, in front of the paths, until the context moves on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafter.proposer import ContextTooLong, DraftOptions, NoSlot, UnknownTokens
from paceline.runtime.kv import OutOfPages
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.speculation.propose import NO_CANDIDATES, Candidates, ranked
from paceline.speculation.select import Path

CANDIDATES = 64  # tokens of a row that are looked at


@dataclass(frozen=True, slots=True)
class Look:
    """What a pass does for a session: what is missing of its context first, then the ends of `paths`."""

    session: int
    paths: Sequence[Path] = ()  # not looked below yet; the path above each is the context, run before, or among them


@dataclass(frozen=True, slots=True)
class Ran:
    """What a pass was."""

    tokens: int  # 0 if there was nothing to run
    starved: set[int]  # sessions for which no KV page is free now


@dataclass(slots=True)
class _Held:
    options: DraftOptions
    sequence: int  # KV sequence
    tokens: list[int]  # the context; the last ones may not be in the KV yet
    chain: int = 0  # tokens of the context at the head of the scratch
    scratch: dict[Path, int] = field(default_factory=dict)  # path -> node of the scratch, for paths that were run
    below: dict[Path, Candidates] = field(default_factory=dict)  # () is the context


class ModelRows:
    """Sessions of one model. A session that a call names has been opened and not closed."""

    def __init__(self, runner: ModelRunner, step_tokens: int) -> None:
        """`step_tokens`: most tokens in one pass."""
        self._runner, self._step_tokens = runner, step_tokens
        self.context_length = runner.info.context_length
        self._sessions: dict[int, _Held] = {}

    def open(self, session: int, context: NDArray[np.int32], options: DraftOptions) -> None:
        """Starts a session; nothing is run yet. Raises ContextTooLong, NoSlot or UnknownTokens."""
        self._check_length(len(context))
        self._check_tokens(int(context.max()))
        try:
            sequence = self._runner.kv.open(reserve_tokens=len(context))
        except OutOfPages as error:
            raise NoSlot(str(error)) from error
        self._sessions[session] = _Held(options, sequence, context.tolist())

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens and keeps the KV of those that a path holds.

        Raises ContextTooLong or UnknownTokens.
        """
        held = self._sessions[session]
        self._check_length(len(held.tokens) + len(tokens))
        self._check_tokens(max(tokens))
        here = held.below.get(tuple(tokens))
        kept = list(range(held.chain))
        if self.missing(session) == 0:
            for end in range(1, len(tokens) + 1):
                node = held.scratch.get(tuple(tokens[:end]))
                if node is None:
                    break
                kept.append(node)
        self._runner.kv.keep(held.sequence, kept)
        held.tokens.extend(tokens)
        held.chain, held.scratch, held.below = 0, {}, {} if here is None else {(): here}

    def close(self, session: int) -> None:
        """Ends a session and frees its KV."""
        self._runner.kv.release(self._sessions.pop(session).sequence)

    def missing(self, session: int) -> int:
        """Tokens of the context that were not run yet."""
        held = self._sessions[session]
        return len(held.tokens) - held.chain - self._runner.kv.length(held.sequence)

    def below(self, session: int) -> Mapping[Path, Candidates]:
        """The model's candidates below each path that was looked below; () is the context."""
        return self._sessions[session].below

    def may_look(self, session: int, path: Path) -> bool:
        """False if tokens below `path` would exceed the model's context."""
        return len(self._sessions[session].tokens) + len(path) < self.context_length

    def run(self, looks: Sequence[Look]) -> Ran:
        """One pass, as far as it has room; sessions of which least is missing first, so that long prompts wait.

        Paths that find no room are left out; so are all of a session whose context is not read to its end.

        A pass that fails is raised. Sessions stay open, and what was known below their contexts is forgotten.
        """
        room, starved = self._step_tokens, set[int]()
        segments: list[Segment] = []
        running: list[tuple[_Held, int, bool, list[Path]]] = []  # session, tokens of its context, the last one, paths
        for missing, look in sorted(((self.missing(look.session), look) for look in looks), key=lambda each: each[0]):
            held = self._sessions[look.session]
            chunk = min(missing, room)
            complete = chunk == missing
            paths = list(look.paths[: room - chunk]) if complete else []
            if not chunk and not paths:
                continue
            if not self._reserve(held, len(held.tokens) - (missing - chunk) + len(held.scratch) + len(paths)):
                starved.add(look.session)
                continue
            room -= chunk + len(paths)
            segments.append(_segment(held, chunk, missing, paths))
            running.append((held, chunk, complete, paths))
        if not segments:
            return Ran(0, starved)
        try:
            rows = self._runner.execute(PassPlan(tuple(segments)))
        except Exception:
            for held, *_ in running:  # a failed pass empties their scratch
                root = held.below.get(())
                held.chain, held.scratch, held.below = 0, {}, {} if root is None else {(): root}
            raise
        for number, (held, chunk, complete, paths) in enumerate(running):
            looked: dict[Path, int] = {}  # path -> node of the pass
            if chunk and not paths:
                self._runner.kv.keep(held.sequence, range(chunk))
            elif chunk:
                held.chain = chunk
            if chunk and complete:
                looked[()] = chunk - 1
            for path in paths:
                looked[path] = held.scratch[path] = held.chain + len(held.scratch)
            if looked:
                logits = torch.stack([rows.logits(number, node) for node in looked.values()])
                held.below |= zip(looked, self._candidates(held.options, logits), strict=True)
        return Ran(rows.tokens, starved)

    def _check_length(self, length: int) -> None:
        if length > self.context_length:
            raise ContextTooLong(f"the context has {length} tokens, the drafter's limit is {self.context_length}")

    def _check_tokens(self, highest: int) -> None:
        """An id without an embedding would fail a whole pass, and with it sessions of others."""
        count = self._runner.info.vocab_padded
        if highest >= count:
            raise UnknownTokens(f"the context holds token {highest}, the drafter's model has {count}")

    def _reserve(self, held: _Held, tokens: int) -> bool:
        try:
            self._runner.kv.reserve(held.sequence, tokens)
        except OutOfPages:
            return False
        return True

    def _candidates(self, options: DraftOptions, logits: torch.Tensor) -> list[Candidates]:
        """The most probable tokens by each of the rows, [R, columns], at a session's temperature.

        None where a row is not finite.
        """
        info = self._runner.info
        logits = logits[:, : info.columns(options.vocab_size)]
        if not options.sampling.greedy:
            logits = logits / options.sampling.temperature
        top = torch.topk(logits, min(CANDIDATES, logits.shape[1]), dim=1)
        totals = torch.logsumexp(logits, dim=1)
        every = (top.values - totals[:, None]).double().cpu().numpy()
        columns = top.indices.cpu().numpy()
        found = []
        for total, ids, log_probs in zip(totals.tolist(), columns, every, strict=True):
            if not math.isfinite(total):
                found.append(NO_CANDIDATES)
                continue
            kept = _served(log_probs, options)
            found.append(ranked(info.ids(ids[:kept]), log_probs[:kept], CANDIDATES))
        return found


def _segment(held: _Held, chunk: int, missing: int, paths: Sequence[Path]) -> Segment:
    """`chunk` of the `missing` tokens of the context, and behind them the ends of `paths`; all their rows but those of
    the context's inner tokens."""
    done = len(held.tokens) - missing
    chain, base = held.chain + chunk, held.chain + len(held.scratch)
    nodes = {path: chain + number for number, path in enumerate((*held.scratch, *paths))}
    ends = [path[-1] for path in paths]
    parents = [*range(-1, chain - 1), *(nodes[path[:-1]] if len(path) > 1 else chain - 1 for path in nodes)]
    last = [chain - 1] if chunk == missing and chunk else []
    return Segment(
        held.sequence,
        np.asarray([*held.tokens[done : done + chunk], *ends], dtype=np.int32),
        np.asarray(parents, dtype=np.int32),
        (*last, *range(base + chunk, base + chunk + len(paths))),
    )


def _served(log_probs: NDArray[np.float64], options: DraftOptions) -> int:
    """How many of the leading tokens the request's top-k and top-p leave."""
    kept = len(log_probs)
    if options.sampling.top_k and not options.sampling.greedy:
        kept = min(kept, options.sampling.top_k)
    if options.sampling.top_p < 1.0 and not options.sampling.greedy:
        kept = min(kept, int(np.searchsorted(np.cumsum(np.exp(log_probs)), options.sampling.top_p)) + 1)
    return kept
