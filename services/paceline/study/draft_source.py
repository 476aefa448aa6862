"""Drafters as a study asks them: a tree for a complete context, whatever was asked before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from paceline.drafter.proposer import DraftOptions, Want
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import TextStore
from paceline.runtime.runner import ModelInfo, ModelRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.propose import NO_CANDIDATES, Candidates, ranked
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path, best_first
from paceline.speculation.tree import DraftTree
from paceline.study.path_rows import PathRows

CANDIDATES = 64  # tokens of a drafter's row that are looked at, as the model proposer does


class DraftSource(Protocol):
    """Ranked trees."""

    name: str

    def tree(self, context: Sequence[int], budget: int, params: SamplingParams) -> DraftTree:
        """The drafter's best `budget` nodes below `context`, in best-first order; fewer if it has no more."""
        ...


class SuffixSource:
    """The suffix proposer, with the session's own text and no store."""

    name = "suffix"

    def __init__(self, vocab_size: int, eos: frozenset[int], max_depth: int) -> None:
        """`eos`: tokens that a tree does not grow below."""
        self._vocab_size, self._eos, self._max_depth = vocab_size, eos, max_depth
        self._proposer = SuffixProposer(TextStore(0), max_depth, 0.0)
        self._held: tuple[SamplingParams, list[int]] | None = None

    def tree(self, context: Sequence[int], budget: int, params: SamplingParams) -> DraftTree:
        """Indexes what the last call has not seen; a context that does not go on from the last is indexed anew."""
        if self._held is not None and self._held[0] == params and context[: len(self._held[1])] == self._held[1]:
            if more := list(context[len(self._held[1]) :]):
                self._proposer.advance(0, more)
        else:
            if self._held is not None:
                self._proposer.close(0)
            options = DraftOptions(Proposal.RANKED, 1.0, params, self._eos, self._vocab_size, learn=False)
            self._proposer.open(0, np.asarray(context, dtype=np.int32), len(context), options)
        self._held = (params, list(context))
        while (growth := self._proposer.propose([Want(0, budget)])[0]) is None:
            continue
        return growth.tree


class ModelSource:
    """A model drafter: trees as the model proposer grows them, from any context."""

    def __init__(self, name: str, runner: ModelRunner, eos: frozenset[int], max_depth: int, width: int) -> None:
        """`width`: nodes that one pass looks below."""
        self.name = name
        self._eos, self._max_depth, self._width = eos, max_depth, width
        self._rows = PathRows(runner)

    def tree(self, context: Sequence[int], budget: int, params: SamplingParams) -> DraftTree:
        """One pass for what is new in the context and one for each level."""
        if not budget:
            return DraftTree.empty()
        self._rows.move(context)
        return grown(self._rows, budget, params, self._eos, self._max_depth, self._width)


def grown(
    rows: PathRows, budget: int, params: SamplingParams, eos: frozenset[int], max_depth: int, width: int
) -> DraftTree:
    """The best-first tree of a drafter's rows, grown a level a pass: `width` of the best nodes are looked below."""
    known: dict[Path, Candidates] = {}

    def expand(path: Path) -> Candidates:
        if path not in known and path in rows.logits:
            known[path] = candidates(rows.runner.info, rows.logits[path], params)
        return known.get(path, NO_CANDIDATES)

    for level in range(max_depth):
        tree = best_first(expand, budget, max_depth)
        paths = [tuple(tree.path_tokens(node)) for node in range(len(tree))]
        frontier = [path for path in paths if path not in rows.logits and len(path) < max_depth and path[-1] not in eos]
        if level + 1 == max_depth or not frontier:
            break
        rows.look(frontier[:width])
    return tree


def candidates(info: ModelInfo, logits: torch.Tensor, params: SamplingParams) -> Candidates:
    """The best candidates of a drafter's row ([columns] float32) at the request's temperature."""
    logits = logits[: info.columns(info.vocab_size)]
    scaled = logits if params.greedy else logits / params.temperature
    top = torch.topk(scaled, min(CANDIDATES, len(scaled)))
    log_probs = (top.values - torch.logsumexp(scaled, dim=0)).double().cpu().numpy()
    return ranked(info.ids(top.indices.cpu().numpy()), log_probs, CANDIDATES)
