"""Drafters as a decoding loop asks them: trees for the sessions of one batch, ranked or sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from paceline.drafter.proposer import DraftOptions, Proposer, Want
from paceline.runtime.runner import ModelRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.noise import propose_seed
from paceline.speculation.proposal_row import ProposalRow, sibling_key
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path
from paceline.speculation.shape import sampled_tree, scheduled_shape
from paceline.speculation.tree import ROOT, DraftTree
from paceline.study.acceptance import no_deeper
from paceline.study.draft_source import candidates
from paceline.study.metered import MeteredRunner
from paceline.study.path_rows import PathRows, look_below, move_all

WIDE = 64  # nodes of the ranked tree that the suffix proposer's rows are read from


class SessionDrafts(Protocol):
    """Trees for sessions by number."""

    @property
    def seconds(self) -> float:
        """Drafting so far, as one session alone would see it; reading prompts left out."""
        ...

    def open(self, session: int, prompt: Sequence[int], params: SamplingParams) -> None:
        """Starts a session and reads its prompt."""
        ...

    def trees(self, wanted: Mapping[int, int]) -> dict[int, DraftTree]:
        """A tree for each session, no deeper than the number given for it."""
        ...

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        ...

    def close(self, session: int) -> None:
        """Ends a session."""
        ...


class RankedDrafts:
    """A proposer's ranked trees, or coupled ones at a strength."""

    def __init__(
        self,
        proposer: Proposer,
        meter: MeteredRunner | None,
        vocab_size: int,
        eos: frozenset[int],
        budget: int,
        strength: float | None = None,
        *,
        beside: bool = False,
        teach: bool = False,
    ) -> None:
        """Takes a proposer.

        Args:
            proposer: whose trees these are.
            meter: the runner of its model; None: it has none.
            vocab_size: of the target.
            eos: tokens that a tree does not grow below.
            budget: nodes of a tree.
            strength: of coupled trees; None: ranked ones.
            beside: whether its time beside the model's passes counts too; without a model it always does.
            teach: whether later sessions profit from what earlier ones have shown.
        """
        self._proposal = Proposal.RANKED if strength is None else Proposal.COUPLED
        self._strength = 1.0 if strength is None else strength
        self._proposer, self._meter, self._budget = proposer, meter, budget
        self._vocab_size, self._eos = vocab_size, eos
        self._beside, self._teach = beside, teach
        self.seconds = 0.0

    def open(self, session: int, prompt: Sequence[int], params: SamplingParams) -> None:
        """Starts a session and reads its prompt."""
        options = DraftOptions(self._proposal, self._strength, params, self._eos, self._vocab_size, learn=self._teach)
        self._proposer.open(session, np.asarray(prompt, dtype=np.int32), len(prompt), options)
        self._proposed({session: 0})

    def trees(self, wanted: Mapping[int, int]) -> dict[int, DraftTree]:
        """A tree for each session, no deeper than the number given for it."""
        before = self._clock()
        found = self._proposed({session: self._budget if depth else 0 for session, depth in wanted.items()})
        self.seconds += self._clock() - before
        return {session: no_deeper(tree, wanted[session]) for session, tree in found.items()}

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        self._proposer.advance(session, tokens)

    def close(self, session: int) -> None:
        """Ends a session."""
        self._proposer.close(session)

    def _clock(self) -> float:
        if self._meter is None:
            return time.perf_counter()
        return self._meter.clock() if self._beside else self._meter.seconds

    def _proposed(self, budgets: Mapping[int, int]) -> dict[int, DraftTree]:
        found: dict[int, DraftTree] = {}
        while left := [Want(session, budget) for session, budget in budgets.items() if session not in found]:
            for want, growth in zip(left, self._proposer.propose(left), strict=True):
                if growth is not None and not growth.growing:
                    found[want.session] = growth.tree
        return found


RowBelow = Callable[[Path], ProposalRow | None]


class SampledSuffix:
    """Siblings drawn from a suffix proposer's rows: the children of each node of a wide ranked tree."""

    def __init__(self, ranked: RankedDrafts, budget: int, max_depth: int) -> None:
        """`ranked`: the proposer's ranked trees, of WIDE nodes."""
        self._ranked, self._budget, self._max_depth = ranked, budget, max_depth
        self._keys: dict[int, tuple[SamplingParams, int]] = {}

    @property
    def seconds(self) -> float:
        """Drafting."""
        return self._ranked.seconds

    def open(self, session: int, prompt: Sequence[int], params: SamplingParams) -> None:
        """Starts a session."""
        self._ranked.open(session, prompt, params)
        self._keys[session] = (params, len(prompt))

    def trees(self, wanted: Mapping[int, int]) -> dict[int, DraftTree]:
        """A tree for each session, no deeper than the number given for it."""
        found = {}
        for session, wide in self._ranked.trees(wanted).items():
            shape = scheduled_shape(self._budget, self._max_depth)
            tree = sampled_tree(shape, _children_row(wide), _key_at(*self._keys[session]))
            found[session] = no_deeper(tree, wanted[session])
        return found

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        self._ranked.advance(session, tokens)
        params, length = self._keys[session]
        self._keys[session] = (params, length + len(tokens))

    def close(self, session: int) -> None:
        """Ends a session."""
        self._ranked.close(session)
        del self._keys[session]


class SampledModel:
    """Siblings drawn from a model's rows at the request's temperature, a level of all sessions a pass."""

    def __init__(self, runner: ModelRunner, eos: frozenset[int], budget: int, max_depth: int) -> None:
        """`eos`: tokens that a tree does not grow below."""
        self._runner = MeteredRunner(runner)
        self._eos, self._shape = eos, scheduled_shape(budget, max_depth)
        self._rows: dict[int, tuple[PathRows, SamplingParams, list[int]]] = {}
        self.seconds = 0.0

    def open(self, session: int, prompt: Sequence[int], params: SamplingParams) -> None:
        """Starts a session and reads its prompt."""
        rows = PathRows(self._runner)
        rows.move(prompt)
        self._rows[session] = (rows, params, list(prompt))

    def trees(self, wanted: Mapping[int, int]) -> dict[int, DraftTree]:
        """A tree for each session, no deeper than the number given for it."""
        before = self._runner.seconds
        held = {session: self._rows[session] for session in wanted}
        move_all(self._runner, [(rows, tokens) for rows, _, tokens in held.values()])
        trees: dict[int, DraftTree] = {}
        known: dict[int, dict[Path, ProposalRow | None]] = {session: {} for session in held}
        asked: dict[int, dict[Path, None]] = {session: {} for session in held}
        going = True
        while going:
            for session, (rows, params, tokens) in held.items():
                row_below = self._row_below(rows, params, known[session], asked[session], wanted[session])
                trees[session] = sampled_tree(self._shape, row_below, _key_at(params, len(tokens)))
            missing = [(held[session][0], list(paths), None) for session, paths in asked.items() if paths]
            look_below(self._runner, missing)
            going = bool(missing)
            for paths in asked.values():
                paths.clear()
        self.seconds += self._runner.seconds - before
        return {session: no_deeper(tree, wanted[session]) for session, tree in trees.items()}

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        self._rows[session][2].extend(tokens)

    def close(self, session: int) -> None:
        """Ends a session."""
        self._rows.pop(session)[0].close()

    def _row_below(
        self,
        rows: PathRows,
        params: SamplingParams,
        known: dict[Path, ProposalRow | None],
        asked: dict[Path, None],
        depth: int,
    ) -> RowBelow:
        def row_below(path: Path) -> ProposalRow | None:
            if len(path) >= depth or (path and path[-1] in self._eos):
                return None
            if path not in rows.logits:
                asked[path] = None  # known in the next turn; what is drawn above stays the same
                return None
            if path not in known:
                best = candidates(rows.runner.info, rows.logits[path], params)
                known[path] = ProposalRow.of(best.tokens, np.exp(best.log_probs), len(best))
            return known[path]

        return row_below


def _key_at(params: SamplingParams, length: int) -> Callable[[int], int]:
    seed = propose_seed(params.seed, params.choice)
    return lambda depth: sibling_key(seed, params.choice, length + depth - 1)


def _children_row(wide: DraftTree) -> RowBelow:
    assert wide.log_probs is not None or not len(wide), "a ranked tree carries log-probabilities"
    nodes: dict[Path, int] = {(): ROOT}
    for node in range(len(wide)):
        nodes[tuple(wide.path_tokens(node))] = node

    def row_below(path: Path) -> ProposalRow | None:
        below = wide.children(nodes[path]) if path in nodes else []
        if not below or wide.log_probs is None:
            return None
        return ProposalRow.of(wide.tokens[below], np.exp(wide.log_probs[below].astype(np.float64)), len(below))

    return row_below
