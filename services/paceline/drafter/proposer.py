"""What a drafter engine needs of a proposer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.modes import Proposal
from paceline.speculation.proposal_row import ProposalRow, sibling_key
from paceline.speculation.propose import NO_CANDIDATES, Candidates, coupled, draft_noise_key, ranked
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path
from paceline.speculation.shape import sampled_tree
from paceline.speculation.tree import DraftTree


class ContextTooLong(Exception):
    """A session's context exceeds what the proposer can hold; the text gives both numbers."""


class NoSlot(Exception):
    """The proposer has no room for another session now; the text names the limit."""


class UnknownTokens(Exception):
    """A session's context holds tokens the proposer's model does not have; the text names one."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How trees of a session are drafted; fixed when it opens."""

    proposal: Proposal  # coupled: candidates are ranked under the target's noise; sampled: siblings are drawn
    strength: float  # coupling strength; used if coupled
    sampling: SamplingParams  # the request's parameters; the seed is right only if coupled
    eos_token_ids: frozenset[int]  # a tree does not grow below one
    vocab_size: int  # ids from here on are never proposed
    learn: bool  # whether other sessions may profit from this one's text and rows
    propose_seed: int = 0  # of the noise that siblings are drawn with; used if sampled
    tenant: str = ""  # sessions of different tenants never profit from each other's text

    @property
    def coupled(self) -> bool:
        """True if candidates are ranked under the target's noise."""
        return self.proposal is Proposal.COUPLED

    @property
    def teaches(self) -> bool:
        """True if other sessions may profit: what drawn siblings have led to must not shape later ones."""
        return self.learn and not self.sampled

    @property
    def sampled(self) -> bool:
        """True if siblings are drawn."""
        return self.proposal is Proposal.SAMPLED


@dataclass(frozen=True, slots=True)
class Want:
    """A tree that is wanted."""

    session: int
    budget: int  # most nodes; 0 only has the context read, and the tree is empty


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree, whole or as far as it has grown."""

    tree: DraftTree
    growing: bool = False  # another call goes on with it; what came meanwhile is looked at first
    soon: bool = False  # the next one is expected so soon that this one is not worth telling
    behind: bool = False  # it is whole, but there is context to be read while nobody wants a tree


class Proposer(Protocol):
    """Guesses trees for sessions. All calls come from the drafter's compute thread.

    A session that a call names has been opened and not closed. A call that raises leaves other sessions as they were;
    the engine then closes the session it was about.
    """

    name: str  # kind of proposer, for people

    @property
    def tokenizer_fingerprint(self) -> str:
        """Fingerprint of its tokenizer; empty if it takes any."""
        ...

    @property
    def context_length(self) -> int:
        """Longest context it can draft for, in tokens; 0 for no limit."""
        ...

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        """Starts a session. Raises ContextTooLong, NoSlot or UnknownTokens."""
        ...

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens, at least one. Raises ContextTooLong or UnknownTokens."""
        ...

    def close(self, session: int) -> None:
        """Ends a session and frees what it holds."""
        ...

    def propose(self, wants: Sequence[Want]) -> Sequence[Growth | None]:
        """One tree for each want, for the session's context as it stands; nodes in best-first order.

        None, or one that is growing, asks to be called again for that want: the proposer has done a part, and others
        should not wait.
        """
        ...

    def row(self, session: int, row: Row) -> None:
        """The target's row at the session's context, its most probable tokens: to draft with when it comes again."""
        ...


def children(
    options: DraftOptions,
    token_ids: NDArray[np.int64],
    log_probs: NDArray[np.float64],
    position: int,
    width: int,
    *,
    strength: float | None = None,
) -> Candidates:
    """The candidates of a node by the session's kind of proposal.

    Args:
        options: the session's options.
        token_ids: [N] candidates.
        log_probs: [N] log of the drafter's probabilities; their sum may be below 1.
        position: index in the full context of the token that is guessed.
        width: most children.
        strength: of coupled candidates; the session's unless given.
    """
    if not options.coupled:
        return ranked(token_ids, log_probs, width)
    key = draft_noise_key(options.sampling, position)
    return coupled(token_ids, log_probs, key=key, strength=strength or options.strength, width=width)


def likeliest(probs: Iterable[tuple[int, float]], width: int) -> Candidates:
    """The `width` most probable of (token, probability) pairs, as `children` ranks them where no noise is known.

    Without arrays until the few that count are known: for a proposer without a model this is most of a tree's cost.
    """
    best = sorted((-prob, token) for token, prob in probs)[:width]
    if not best:
        return NO_CANDIDATES
    return Candidates(
        np.array([token for _, token in best], dtype=np.int32), np.array([math.log(-prob) for prob, _ in best])
    )


def known_children(
    options: DraftOptions, row: Row, position: int, width: int, vocab_size: int | None = None
) -> Candidates:
    """The candidates of a node whose row is the target's own; coupled ones imitate its draw.

    It may be another target's, or hold tokens that the drafter lacks: ids from either vocabulary's end on are left out.
    """
    within = row.token_ids < min(options.vocab_size, vocab_size or options.vocab_size)
    token_ids, log_probs = row.token_ids[within], np.log(row.probs[within])
    return children(options, token_ids, log_probs, position, width, strength=1.0)


def draw_tree(
    options: DraftOptions, row_below: Callable[[Path], ProposalRow | None], length: int, shape: DraftTree
) -> DraftTree:
    """A tree of drawn siblings below a context of `length` tokens. `shape` knows nothing of what is drawn."""
    return sampled_tree(shape, row_below, lambda depth: sibling_key(options.propose_seed, 0, length + depth - 1))
