"""A proposer whose row depends on the last token only, so that its law is known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.proposer import DraftOptions, Growth, Want, children, draw_tree
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.propose import Candidates
from paceline.speculation.rows import Row
from paceline.speculation.select import Path, best_first
from paceline.speculation.shape import scheduled_shape

DEPTH = 3


class TableProposer:
    """Drafts from a table, [V, V]: row t is the distribution after token t."""

    name = "table"
    tokenizer_fingerprint = ""
    context_length = 0

    def __init__(self, table: NDArray[np.float64]) -> None:
        self._ids = np.arange(len(table), dtype=np.int64)
        self._log_probs = np.log(table)
        self._rows = [ProposalRow.of(self._ids, row, len(table)) for row in table]
        self._sessions: dict[int, tuple[list[int], DraftOptions]] = {}

    def open(self, session: int, context: NDArray[np.int32], prompt_length: int, options: DraftOptions) -> None:
        self._sessions[session] = (context.tolist(), options)

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        self._sessions[session][0].extend(tokens)

    def close(self, session: int) -> None:
        del self._sessions[session]

    def row(self, session: int, row: Row) -> None:
        pass

    def propose(self, wants: Sequence[Want]) -> list[Growth]:
        return [self._tree(want) for want in wants]

    def _tree(self, want: Want) -> Growth:
        tokens, options = self._sessions[want.session]
        length, last = len(tokens), tokens[-1]

        def row_below(path: Path) -> ProposalRow | None:
            return self._rows[path[-1] if path else last]

        def expand(path: Path) -> Candidates:
            log_probs = self._log_probs[path[-1] if path else last]
            return children(options, self._ids, log_probs, length + len(path), want.budget)

        if options.sampled:
            return Growth(draw_tree(options, row_below, length, scheduled_shape(want.budget, DEPTH)))
        return Growth(best_first(expand, want.budget, DEPTH))
