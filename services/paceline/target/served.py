"""The rows a request is served from, processed where a walk comes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.speculation.rows import Row, nucleus, process
from paceline.speculation.tree import ROOT
from paceline.target.request import SessionRequest


@dataclass(frozen=True, slots=True, eq=False)
class HeldRow:
    """A row at the end of the context, held for the next tree."""

    row: Row  # what is drawn from
    full: Row  # the served row, whole; another one only where `retain` has left tokens out
    nucleus: Row | None = None  # requests with nucleus verification


class ServedRows:
    """Rows of one turn by node, each processed once and only if asked for."""

    def __init__(
        self,
        request: SessionRequest,
        vocab_size: int,
        logits: Callable[[int], torch.Tensor],
        held: HeldRow | None = None,
    ) -> None:
        """`logits` gives [vocab_padded] at a node; at ROOT it is not asked if `held` is given."""
        self._request, self._vocab_size, self._logits, self._held = request, vocab_size, logits, held
        self._rows: dict[int, Row] = {}

    def row(self, node: int) -> Row:
        """What is drawn from at `node`."""
        return self._held.row if node == ROOT and self._held is not None else self._served(node)

    def full(self, node: int) -> Row:
        """The served row at `node`."""
        return self._held.full if node == ROOT and self._held is not None else self._served(node)

    def nucleus(self, node: int) -> Row:
        """The nucleus at `node`: tokens that can be served, at the nucleus temperature."""
        if node == ROOT and self._held is not None and self._held.nucleus is not None:
            return self._held.nucleus
        rule, sampling = self._request.nucleus, self._request.sampling
        assert rule is not None, "only asked where verification may relax"
        params = rule.row_params(sampling)
        if params == sampling:
            return nucleus(self._served(node), rule.mass)
        found = nucleus(process(self._logits(node), params, self._vocab_size), rule.mass)
        return found if sampling.greedy else found.only(self._served(node))

    def held(self, node: int) -> HeldRow:
        """The row at `node`, to be held."""
        row = self.full(node)
        return HeldRow(row, row, self.nucleus(node) if self._request.nucleus is not None else None)

    def _served(self, node: int) -> Row:
        if node not in self._rows:
            self._rows[node] = process(self._logits(node), self._request.sampling, self._vocab_size)
        return self._rows[node]
