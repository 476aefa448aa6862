"""The suffix proposer: what followed these tokens before, in this session's text and in text served earlier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.known_rows import ContextHash, KnownRows
from paceline.drafter.ngrams import LONGEST, ORDERS, NGrams, context_keys, tenant_start
from paceline.drafter.proposer import DraftOptions, Growth, Want, children, draw_tree, known_children, likeliest
from paceline.drafter.said import Heard
from paceline.drafter.text_store import TextStore
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import NO_CANDIDATES, Candidates
from paceline.speculation.rows import Row
from paceline.speculation.select import Path, best_first
from paceline.speculation.shape import scheduled_shape
from paceline.speculation.tree import DraftTree

OWN_WEIGHT = 2.0  # a sighting in the session's own text against one in the store
MIN_PROB = 1e-3  # candidates below it are not looked at
DRAWN_FROM = 64  # most tokens of a row that siblings are drawn from
INDEX_TOKENS = 1024  # of prompts, indexed in one call, about 10 us each: a long one holds nobody up
# What each follower of a context weighs against a sighting when a share is passed on to shorter contexts, by the
# context's length in tokens: chance meetings of short contexts say little.
ESCAPE = {1: 8.0, 2: 4.0, 3: 3.0, 4: 2.0, 6: 1.5, 8: 1.0}


@dataclass(slots=True)
class _Session:
    options: DraftOptions
    tokens: list[int]  # prompt and output
    prompt_length: int
    start: int  # of the keys of its tenant
    hash: ContextHash
    own: NGrams = field(default_factory=NGrams)
    indexed: int = 0  # tokens of `tokens` that `own` has learned


class SuffixProposer:
    """Back-off statistics blended over context lengths.

    The longest context that was seen before speaks first and leaves a share to shorter ones: with T followers of total
    weight C it keeps C / (C + T) and passes T / (C + T) on (prediction by partial matching, method C). Agreement over
    several lengths thus adds up to confidence, and path products are comparable over the whole tree.
    """

    name = "suffix"
    context_length = 0

    def __init__(
        self,
        store: TextStore,
        max_depth: int,
        min_path_prob: float,
        known: KnownRows | None = None,
        tokenizer_fingerprint: str = "",
    ) -> None:
        """Takes its bounds.

        Args:
            store: what is remembered of served text over all sessions.
            max_depth: levels of a tree.
            min_path_prob: nodes reached with less probability are not proposed.
            known: where rows of the target are kept; None keeps none.
            tokenizer_fingerprint: of the only tokenizer whose ids may come; empty if any may.
        """
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self._known = KnownRows(0) if known is None else known
        self.store = store
        self._max_depth = max_depth
        self._min_log_score = math.log(min_path_prob) if min_path_prob > 0 else -math.inf
        self._min_prob = max(MIN_PROB, min_path_prob)  # of a candidate that no noise can lift
        self._sessions: dict[int, _Session] = {}

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        """Starts a session; its text is indexed in later calls of `propose`."""
        start, known = tenant_start(options.tenant), ContextHash(options, context)
        self._sessions[session] = _Session(options, context.tolist(), prompt_length, start, known)

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        held = self._sessions[session]
        held.tokens.extend(tokens)
        held.hash.append(tokens)

    def row(self, session: int, row: Row) -> None:
        """Keeps the target's row at the session's context, if it may."""
        held = self._sessions[session]
        if held.options.teaches:
            self._known.keep(held.hash, row)

    def close(self, session: int) -> None:
        """Ends a session; the store learns its reply, if it may."""
        held = self._sessions.pop(session)
        if held.options.teaches:
            self.store.add(held.tokens, held.prompt_length, held.options.tenant)
        self.store.learn_part()

    def heard_below(self, session: int) -> Callable[[Path], Heard]:
        """What is said of tokens after the context and a path below it, for the context as far as it is indexed."""
        held = self._sessions[session]
        tail = held.tokens[-LONGEST:]
        served = self.store.generations()

        def heard(path: Path) -> Heard:
            keys = context_keys([*tail, *path][-LONGEST:], held.start)
            return _blended(keys, held.own, served, held.options.vocab_size)

        return heard

    def propose(self, wants: Sequence[Want]) -> list[Growth | None]:
        """One tree for each want; None for one whose text is not indexed to its end yet."""
        room = INDEX_TOKENS
        by_missing = sorted(wants, key=lambda want: self._missing(want.session))
        for want in by_missing:  # short remainders first, so that long prompts wait
            room -= self._index(self._sessions[want.session], room)
        if self.store.waiting:
            self.store.learn_part()
        return [None if self._missing(want.session) else Growth(self._tree(want)) for want in wants]

    def _missing(self, session: int) -> int:
        held = self._sessions[session]
        return len(held.tokens) - held.indexed

    def _index(self, held: _Session, room: int) -> int:
        """Has the session's own text learned up to `room` tokens further; returns how many those were."""
        first, held.indexed = held.indexed, min(held.indexed + room, len(held.tokens))
        for index in range(first, held.indexed):
            keys = context_keys(held.tokens[max(0, index - LONGEST) : index], held.start)
            held.own.learn(keys, held.tokens[index])
        return held.indexed - first

    def _tree(self, want: Want) -> DraftTree:
        held, budget = self._sessions[want.session], want.budget
        if not budget:
            return DraftTree.empty()
        length = len(held.tokens)
        heard = self.heard_below(want.session)

        def expand(path: Path) -> Candidates:
            if path and path[-1] in held.options.eos_token_ids:
                return NO_CANDIDATES
            known = self._known.find(held.hash, path)
            if known is not None:
                return known_children(held.options, known, length + len(path), budget)
            return self._candidates(held.options, heard(path).probs, length + len(path), budget)

        def row_below(path: Path) -> ProposalRow | None:
            if path and path[-1] in held.options.eos_token_ids:
                return None
            known = self._known.find(held.hash, path)
            if known is not None:
                within = known.token_ids < held.options.vocab_size
                return ProposalRow.of(known.token_ids[within], known.probs[within], DRAWN_FROM)
            likely = {token: prob for token, prob in heard(path).probs.items() if prob >= MIN_PROB}
            if not likely:
                return None
            return ProposalRow.of(np.fromiter(likely, np.int64), np.fromiter(likely.values(), float), DRAWN_FROM)

        if held.options.sampled:
            return draw_tree(held.options, row_below, length, scheduled_shape(budget, self._max_depth))
        return best_first(expand, budget, self._max_depth, self._min_log_score)

    def _candidates(self, options: DraftOptions, probs: Mapping[int, float], position: int, width: int) -> Candidates:
        if options.coupled:
            likely = [token for token, prob in probs.items() if prob >= MIN_PROB]
            if not likely:
                return NO_CANDIDATES
            log_probs = np.log([probs[token] for token in likely])
            return children(options, np.asarray(likely, dtype=np.int64), log_probs, position, width)
        return likeliest(((token, prob) for token, prob in probs.items() if prob >= self._min_prob), width)


def _blended(keys: Sequence[int], own: NGrams, served: Sequence[NGrams], vocab_size: int) -> Heard:
    """Probability of each token seen behind these contexts, all lengths and both sources together."""
    found: dict[int, float] = {}
    found_own: dict[int, float] = {}
    left = 1.0  # probability that longer contexts have not given away
    for key, order in zip(reversed(keys), reversed(ORDERS[: len(keys)]), strict=True):
        weights: dict[int, float] = {}
        own.add_followers(key, OWN_WEIGHT, weights)
        owned = list(weights.items())
        for each in served:
            each.add_followers(key, 1.0, weights)
        if not weights:
            continue
        escape = ESCAPE[order] * len(weights)
        share = left / (sum(weights.values()) + escape)
        for token, count in weights.items():
            if token < vocab_size:
                found[token] = found.get(token, 0.0) + share * count
        for token, count in owned:
            found_own[token] = found_own.get(token, 0.0) + share * count
        left = share * escape
        if left < MIN_PROB:
            break
    return Heard(found, found_own)
