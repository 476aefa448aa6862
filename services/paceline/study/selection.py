"""Expected acceptance by selection rule and budget, on a target's own rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.runtime.runner import ModelRunner
from paceline.speculation.modes import Selection
from paceline.speculation.rows import Row, process
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path
from paceline.speculation.tree import DraftTree
from paceline.study.draft_source import DraftSource
from paceline.study.parts import Parts
from paceline.study.path_rows import PathRows
from paceline.study.replay import CANDIDATES, chosen, previous, replay
from paceline.study.reply import plain_replies
from paceline.study.selection_sums import Judged, first_tokens, outcomes

RULES = (Selection.DRAFT, Selection.RETAIN, Selection.RERANK, Selection.DRAW_FIRST)
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What is compared, and at how many contexts."""

    budgets: Sequence[int] = (1, 2, 4, 8, 16, 32)
    temperatures: Sequence[float] = (0.0, 0.7, 1.0)
    seed: int = 20261130
    prompt_tokens: int = 192  # most tokens of a prompt
    stretch: int = 24  # tokens of a reply in which rounds begin
    contexts: int = 4  # of a reply, for the exact expectations
    max_depth: int = 8
    width: int = 8  # nodes of a level that a model drafter looks below
    first_tokens: int = 3  # tokens drawn first that are taken one by one; one more stands for the rest
    timed: int = 6  # contexts at which drafting is timed, for each budget

    def __post_init__(self) -> None:
        """Raises ValueError for a stretch without room for the contexts."""
        if not 0 < self.contexts < self.stretch:
            raise ValueError(f"contexts: got {self.contexts}, allowed: 1 to {self.stretch - 1} (stretch - 1)")

    @property
    def new_tokens(self) -> int:
        """Tokens of a reply, so that the last round has room."""
        return self.stretch + self.max_depth + 2

    def params(self, temperature: float) -> SamplingParams:
        """What is served."""
        return SamplingParams(temperature=temperature, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Sources:
    """A drafter, once for trees at the context and once, a level shorter, for trees below a token drawn first."""

    at: DraftSource
    below: DraftSource


class Pair:
    """A target and a drafter at one temperature."""

    def __init__(self, target: ModelRunner, sources: Sources, settings: SelectionSettings, temperature: float) -> None:
        """Opens a sequence of the target's, which `close` ends."""
        self._settings, self._sources = settings, sources
        self._params = settings.params(temperature)
        self._vocab_size = target.info.vocab_size
        self._rows = PathRows(target)

    def close(self) -> None:
        """Gives the target's KV back."""
        self._rows.close()

    def measure(self, prompt: Sequence[int], reply: Sequence[int], number: int) -> dict[str, Any]:
        """Sums over one prompt's contexts and rounds, as plain data. `number` of the prompt seeds its draws."""
        settings = self._settings
        stretch = min(settings.stretch, len(reply) - settings.max_depth - 2)
        if stretch < 2:
            return {"exact": {}, "replay": {}, "contexts": 0, "enumerated": 0.0}
        rows = self._reply_rows(prompt, reply)
        trees = [self._candidates([*prompt, *reply[:at]]) for at in range(stretch + 1)]
        places = np.linspace(1, stretch - 1, min(settings.contexts, stretch - 1)).astype(int).tolist()
        exact: dict[str, list[list[float]]] = {rule: [[0.0] * 4 for _ in settings.budgets] for rule in RULES}
        rng = np.random.default_rng([settings.seed, number])
        enumerated = 0.0
        for at in places:
            enumerated += self._exact(prompt, reply, at, rows, trees, rng, exact)
        rounds = {
            rule: [
                _plain(replay(rule, budget, reply, stretch, settings.max_depth, trees.__getitem__, rows.__getitem__))
                for budget in settings.budgets
            ]
            for rule in RULES
        }
        return {"exact": exact, "replay": rounds, "contexts": len(places), "enumerated": enumerated}

    def draft_seconds(self, prompt: Sequence[int], reply: Sequence[int]) -> dict[int, float]:
        """Median seconds in which a tree of each size is drafted, one token after the other along a reply."""
        sizes = sorted({size for budget in self._settings.budgets for size in (budget, CANDIDATES * budget)})
        found = {}
        for size in sizes:
            times = []
            for at in range(1, min(self._settings.timed, len(reply) - 1) + 1):
                start = time.perf_counter()
                self._sources.at.tree([*prompt, *reply[:at]], size, self._params)
                times.append(time.perf_counter() - start)
            found[size] = float(np.median(times[1:] or times))  # the first one may have the context to read
        return found

    def _candidates(self, context: Sequence[int]) -> DraftTree:
        return self._sources.at.tree(context, CANDIDATES * max(self._settings.budgets), self._params)

    def _reply_rows(self, prompt: Sequence[int], reply: Sequence[int]) -> list[Row]:
        """The target's row before each token of the reply, from one pass."""
        self._rows.move(prompt)
        paths: list[Path] = [tuple(reply[: at + 1]) for at in range(len(reply) - 1)]
        self._rows.look(paths)
        return [process(self._rows.logits[path], self._params, self._vocab_size) for path in ((), *paths)]

    def _exact(
        self,
        prompt: Sequence[int],
        reply: Sequence[int],
        at: int,
        rows: Sequence[Row],
        trees: Sequence[DraftTree],
        rng: np.random.Generator,
        sums: Mapping[str, list[list[float]]],
    ) -> float:
        """Adds one context to `sums`: weight, accepted, nodes, and what `draft` accepts there, each times weight.

        Returns the mass of the first tokens that were taken one by one.
        """
        settings, row = self._settings, rows[at]
        context = [*prompt, *reply[:at]]
        firsts = first_tokens(row, settings.first_tokens, rng)
        most = max(settings.budgets)
        below = {token: self._sources.below.tree([*context, token], most - 1, self._params) for token in firsts.weights}
        kept = {
            budget: previous(reply, at, chosen(trees[at - 1], budget, None), rows[at]) for budget in settings.budgets
        }
        self._rows.move(context)
        judged = Judged(
            self._rows, self._params, [((), trees[at]), *(((token,), tree) for token, tree in below.items())]
        )
        found = outcomes(judged, trees[at], row, kept, below, firsts, settings.budgets)
        for number, budget in enumerate(settings.budgets):
            draft = found[Selection.DRAFT][number]
            assert draft is not None
            for rule in RULES:
                outcome = found[rule][number]
                if outcome is None:
                    continue
                # A row is kept only where the draw fell outside the tree, so such contexts count by that chance.
                held = kept[budget]
                weight = 1.0 if rule is not Selection.RETAIN or held is None else _outside(row, held)
                for index, each in enumerate((1.0, outcome.accepted, outcome.nodes, draft.accepted)):
                    sums[rule][number][index] += weight * each
        return firsts.enumerated


def _outside(row: Row, kept: Row) -> float:
    """Mass of `row` on the tokens that `kept` has left."""
    return float(row.probs[np.isin(row.token_ids, kept.token_ids)].sum())


def _plain(rounds: Any) -> list[int]:
    return [rounds.rounds, rounds.tokens, rounds.nodes, rounds.kept]


def replies_of(
    target: ModelRunner, prompts: Sequence[Sequence[int]], settings: SelectionSettings, parts: Parts, progress: Progress
) -> dict[float, list[list[int]]]:
    """The target's plain replies at each temperature."""
    found = {}
    for temperature in settings.temperatures:

        def make(temperature: float = temperature) -> list[list[int]]:
            params = settings.params(temperature)
            wanted = settings.new_tokens
            return plain_replies(
                target, prompts, params, wanted, lambda done: progress(f"replies at {temperature:g}: {done}/{wanted}")
            )

        found[temperature] = parts.made(f"replies-{target.info.name}-{temperature:g}", make)
    return found
