"""The fused proposer: one tree from the suffix proposer's statistics and a model's rows.

A round of a session: the suffix proposer speaks at once for every path, the model where it has looked. What they say is
merged into probabilities that have proved right (`trust`), the best nodes by these make the tree, and the model looks
below the best of them as long as that is worth its time (`looks`). Trees are sent as they grow. The next advance tells
which tokens were right, and what of that was known.

Sampled proposals are drawn from one row, in a shape that no guess may bend: there is nothing to merge, and such
sessions are the model's alone.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.blend import MIN_PROB, Blend, Members
from paceline.drafter.fused_round import Round, same_nodes
from paceline.drafter.known_rows import ContextHash, KnownRows
from paceline.drafter.looks import Gains, Times, worthwhile
from paceline.drafter.model import ModelProposer
from paceline.drafter.model_rows import Look, ModelRows
from paceline.drafter.proposer import ContextTooLong, DraftOptions, Growth, NoSlot, UnknownTokens, Want
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.trust import SessionTrust, Trust, TrustLine
from paceline.runtime.runner import ModelRunner
from paceline.speculation.rows import Row
from paceline.speculation.select import best_first
from paceline.speculation.tree import DraftTree

log = logging.getLogger(__name__)

SOON_S = 0.012  # seconds to the next tree in which telling this one would take more than it gives
READ_AHEAD = 16  # tokens of a context the model may be behind before it reads them while nobody wants a tree
WARM = (0.0, 0.85)  # upper ends of ranges of temperature that are learned apart; the last is open
WARMTH = ("greedy", "cool", "warm")  # their names
_NOTHING = Growth(DraftTree.empty())


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a fused proposer, for people."""

    proposer: str  # its kind
    sessions: int  # that it drafts for
    passes: int  # of its model since start
    left: Mapping[str, int]  # sessions that went on without it since start, by reason
    trust: Sequence[tuple[str, TrustLine]]  # how far it was right, with the range of temperatures


@dataclass(slots=True)
class _Learned:
    """What is known over all sessions of a range of temperatures."""

    trust: Trust = field(default_factory=Trust)
    gains: Gains = field(default_factory=Gains)

    def copy(self) -> _Learned:
        """For a session of which nothing may outlive it."""
        return _Learned(self.trust.copy(), self.gains.copy())


@dataclass(slots=True)
class _Session:
    blend: Blend
    gains: Gains
    follows: bool = True  # whether the model follows it
    starved: bool = False  # no KV page was free for the context as it stands
    round: Round | None = None
    whole_at: float | None = None  # when the target was given the whole tree that it waited for
    told: bool = False  # the target's row at the context was told; the drawn token may come
    tells: bool = False  # a row was told in this round
    free: bool = False  # the target is busy with a row of its own, as in the round before, until that is told


class FusedProposer:
    """Merges a suffix proposer and a model. What they are worth is learned over all sessions."""

    name = "fused"
    context_length = 0  # where the model's ends, the suffix proposer goes on alone

    def __init__(
        self,
        suffix: SuffixProposer,
        runner: ModelRunner,
        tokenizer_fingerprint: str,
        *,
        max_depth: int,
        width: int,
        step_tokens: int,
        min_path_prob: float,
        times: Times,
        known: KnownRows | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes its members and bounds.

        Args:
            suffix: one member.
            runner: the model of the other one.
            tokenizer_fingerprint: of the model's tokenizer.
            max_depth: levels of a tree, and passes it takes.
            width: nodes of a session that one pass looks below.
            step_tokens: most tokens in one pass.
            min_path_prob: nodes reached with less probability are not proposed.
            times: what a look is weighed against.
            known: where rows of the target are kept; None keeps none.
            clock: monotone seconds.
        """
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self._suffix, self._rows = suffix, ModelRows(runner, step_tokens)
        self._model = ModelProposer(
            runner,
            tokenizer_fingerprint,
            max_depth=max_depth,
            width=width,
            step_tokens=step_tokens,
            min_path_prob=min_path_prob,
            known=known,
        )  # of sampled sessions
        self._max_depth, self._width = max_depth, width
        self._min_log_score = math.log(min_path_prob) if min_path_prob > 0 else -math.inf
        self._min_prob = max(MIN_PROB, min_path_prob / 2)
        self._times, self._clock = times, clock
        self._known = KnownRows(0) if known is None else known
        self._learned = [_Learned() for _ in WARMTH]
        self._sessions: dict[int, _Session] = {}
        self._sampled: set[int] = set()
        self._drafting = 1  # sessions that want a tree now
        self._passes = 0
        self._left: Counter[str] = Counter()  # sessions that went on without the model, by reason

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        """Starts a session. A sampled one raises what the model proposer raises."""
        if options.sampled:
            self._model.open(session, context, prompt_length, options)
            self._sampled.add(session)
            return
        self._suffix.open(session, context, prompt_length, options)
        learned = self._learned[bisect_left(WARM, options.sampling.temperature)]
        learned = learned if options.teaches else learned.copy()
        hashed = ContextHash(options, context)
        blend = Blend(options, SessionTrust(learned.trust), self._known, hashed, len(context), self._min_prob)
        held = self._sessions[session] = _Session(blend, learned.gains)
        try:
            self._rows.open(session, context, options)
        except (ContextTooLong, NoSlot, UnknownTokens) as error:
            held.follows = False
            self._count(error)

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens, and learns from them what members were worth."""
        if session in self._sampled:
            self._model.advance(session, tokens)
            return
        held = self._sessions[session]
        self._heard(held)
        drawn = held.told and len(tokens) == 1
        if not drawn:
            held.free, held.tells = held.tells, False
        held.told = held.starved = False
        held.round = None
        self._suffix.advance(session, tokens)
        held.blend.advance(tokens)
        if held.follows:
            try:
                self._rows.advance(session, tokens)
            except (ContextTooLong, UnknownTokens) as error:
                self._part(session, error)

    def row(self, session: int, row: Row) -> None:
        """Keeps the target's row at the session's context, if it may; a tree under way goes on with it."""
        if session in self._sampled:
            self._model.row(session, row)
            return
        held = self._sessions[session]
        self._heard(held)
        if held.blend.options.teaches:
            self._known.keep(held.blend.hash, row)
        held.blend.told(row)
        held.told, held.tells, held.free = True, True, False

    def close(self, session: int) -> None:
        """Ends a session at both members."""
        if session in self._sampled:
            self._sampled.discard(session)
            self._model.close(session)
            return
        held = self._sessions.pop(session)
        try:
            self._suffix.close(session)
        finally:
            if held.follows:
                self._rows.close(session)

    def propose(self, wants: Sequence[Want]) -> list[Growth | None]:
        """Trees, one pass of the model further than before; the first of each without a pass, and nobody waits for it.

        None for a session whose text is not read to its end, or for which nothing new was found.
        """
        found: dict[int, Growth | None] = {}
        merged = [want for want in wants if want.session not in self._sampled]
        self._drafting = max(1, sum(want.budget > 0 for want in merged))
        texts = self._suffix.propose([Want(want.session, 0) for want in merged])
        ready = [want for want, text in zip(merged, texts, strict=True) if text is not None]
        first = [want for want in ready if not self._is_begun(want)]
        if first:
            return [self._begin(want) if want in first else None for want in wants]
        sampled = [want for want in wants if want.session in self._sampled]
        if sampled:
            found |= zip((want.session for want in sampled), self._model.propose(sampled), strict=True)
        found |= self._look(ready)
        return [found.get(want.session) for want in wants]

    def members(self) -> list[MemberState]:
        """What members are worth. May be called from any thread."""
        lines = [
            (warmth, line) for warmth, each in zip(WARMTH, self._learned, strict=True) for line in each.trust.lines()
        ]
        following = sum(each.follows for each in list(self._sessions.values()))
        model = MemberState("model", following + len(self._sampled), self._passes, dict(self._left), [])
        members = [MemberState("suffix", len(self._sessions), 0, {}, []), model]
        return [
            replace(member, trust=[each for each in lines if each[1].member == member.proposer]) for member in members
        ]

    # -- a tree -------------------------------------------------------------------------------------------------------

    def _is_begun(self, want: Want) -> bool:
        begun = self._sessions[want.session].round
        return not want.budget or (begun is not None and begun.budget == want.budget)

    def _begin(self, want: Want) -> Growth:
        """The tree of what is known without a pass."""
        held = self._sessions[want.session]
        held.round = Round(want.budget)
        held.round.grow(self._best(want.session, held, want.budget))
        return self._grown(want.session, held, held.round)

    def _look(self, wants: Sequence[Want]) -> dict[int, Growth | None]:
        """One pass for all of them."""
        looks: list[Look] = []
        for want in wants:
            held = self._sessions[want.session]
            if want.budget and held.round is not None:
                looks.append(Look(want.session, [path for path in held.round.paths if path]))
            elif self._is_behind(want.session, held):
                looks.append(Look(want.session))
        started = self._clock()
        tokens = self._run(looks)
        found: dict[int, Growth | None] = {}
        for want in wants:
            held = self._sessions[want.session]
            if want.budget and held.round is not None:
                found[want.session] = self._looked(want.session, held, held.round)
            elif not self._is_behind(want.session, held):
                found[want.session] = _NOTHING
        if tokens:
            self._times.passed(tokens, self._clock() - started)  # with what its rows are made into
        return found

    def _run(self, looks: Sequence[Look]) -> int:
        """One pass, and its tokens. A session that it fails for goes on without the model."""
        try:
            ran = self._rows.run(looks)
        except Exception as error:
            if len(looks) > 1:  # find the one that fails, so that the others keep their model
                return sum(self._run([look]) for look in looks)
            log.exception("the model failed on session %d, which goes on with the suffix proposer", looks[0].session)
            self._part(looks[0].session, error)
            return 0
        self._passes += ran.tokens > 0
        for session in ran.starved:
            self._sessions[session].starved = True
        return ran.tokens

    def _looked(self, session: int, held: _Session, begun: Round) -> Growth | None:
        """The tree after a pass; None if it goes on and is the same as before."""
        members, before = self._members(session, held), begun.tree
        held.blend.forget(begun.paths)
        begun.grow(self._best(session, held, begun.budget))
        if all(path in members.model for path in begun.paths):
            held.gains.learn(begun.places, begun.expected - held.blend.value(before, members, begun.budget))
        begun.passes += 1
        begun.spent_s += self._times.pass_s(begun.tokens, self._drafting) or 0.0
        growth = self._grown(session, held, begun)
        return None if growth.growing and same_nodes(growth.tree, before) else growth

    def _grown(self, session: int, held: _Session, begun: Round) -> Growth:
        """The tree as it is, and what is looked at next."""
        self._choose(session, held, begun)
        if begun.paths:
            next_s = self._times.pass_s(begun.tokens, self._drafting)
            return Growth(begun.tree, growing=True, soon=next_s is not None and next_s < SOON_S)
        held.round = None
        held.whole_at = None if held.free else self._clock()
        return Growth(begun.tree, behind=held.follows and self._rows.missing(session) > READ_AHEAD)

    def _choose(self, session: int, held: _Session, begun: Round) -> None:
        """Where the next pass looks; nowhere ends the tree."""
        begun.paths, begun.places, blend = [], [], held.blend
        if not held.follows or held.starved or begun.passes >= self._max_depth:
            return
        members = self._members(session, held)
        paths, places = begun.frontier(blend, members, self._max_depth, lambda path: self._rows.may_look(session, path))
        paths, places = paths[: self._width], places[: self._width]
        if not paths:
            return
        unread = self._rows.missing(session) - (paths[0] == ())  # the context's own row comes with its last token
        count = worthwhile(
            places,
            begun.expected,
            held.gains,
            self._times,
            unread=unread,
            sessions=self._drafting,
            spent_s=begun.spent_s,
            free=held.free,
        )
        if not count:
            held.gains.passed_over(places[0])
        begun.paths, begun.places, begun.tokens = paths[:count], places[:count], unread + count

    def _best(self, session: int, held: _Session, budget: int) -> DraftTree:
        """The best nodes of what is known."""
        members, blend = self._members(session, held), held.blend
        return best_first(
            lambda path: blend.candidates(path, members, budget), budget, self._max_depth, self._min_log_score
        )

    def _members(self, session: int, held: _Session) -> Members:
        return Members(self._suffix.heard_below(session), self._rows.below(session) if held.follows else {})

    # -- the model ----------------------------------------------------------------------------------------------------

    def _is_behind(self, session: int, held: _Session) -> bool:
        """True if the model has some of the context to read, and can."""
        return held.follows and not held.starved and self._rows.missing(session) > 0

    def _part(self, session: int, error: Exception) -> None:
        """The session goes on without the model."""
        self._sessions[session].follows = False
        self._rows.close(session)
        self._count(error)

    def _count(self, error: Exception) -> None:
        self._left[_REASONS.get(type(error), "failed")] += 1

    def _heard(self, held: _Session) -> None:
        """The target has gone on with a session."""
        if held.whole_at is not None:
            self._times.rounded(self._clock() - held.whole_at)
            held.whole_at = None


_REASONS: dict[type[Exception], str] = {
    ContextTooLong: "context limit",
    NoSlot: "no KV page",
    UnknownTokens: "unknown token",
}
