"""Proposers that know the answer, for experiments and tests: the upper and the lower end of drafting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.proposer import DraftOptions, Growth, Want
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row
from paceline.speculation.tree import DraftTree

Answers = Mapping[tuple[int, ...], Sequence[int]]  # prompt -> the reply that plain decoding gives


class OracleProposer:
    """Proposes the known reply as a chain, or, with `wrong`, a chain that misses it at every level."""

    tokenizer_fingerprint = ""
    context_length = 0

    def __init__(self, answers: Answers, *, wrong: bool = False) -> None:
        self.name = "wrong" if wrong else "oracle"
        self._answers, self._wrong = answers, wrong
        self._sessions: dict[int, tuple[list[int], int, DraftOptions]] = {}

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        """Starts a session."""
        self._sessions[session] = (context.tolist(), prompt_length, options)

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        self._sessions[session][0].extend(tokens)

    def close(self, session: int) -> None:
        """Ends a session."""
        del self._sessions[session]

    def row(self, session: int, row: Row) -> None:
        """Nothing to be learned from it."""

    def propose(self, wants: Sequence[Want]) -> list[Growth]:
        """The next tokens of the reply that belongs to each session's prompt; nothing where it is unknown."""
        return [Growth(self._tree(want)) for want in wants]

    def _tree(self, want: Want) -> DraftTree:
        tokens, prompt_length, options = self._sessions[want.session]
        reply = self._answers.get(tuple(tokens[:prompt_length]), ())
        done = len(tokens) - prompt_length
        ahead = list(reply[done : done + want.budget])
        if self._wrong:
            ahead = [(token + 1) % options.vocab_size for token in ahead]
        if not options.sampled:
            return DraftTree.chain(ahead)
        sure = [ProposalRow(np.asarray([token], dtype=np.int32), np.ones(1, dtype=np.float32)) for token in ahead]
        return DraftTree.build(ahead, range(-1, len(ahead) - 1), None, [*sure, None])
