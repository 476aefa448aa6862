"""A table model behind the engine interface: the next token's distribution depends on the last token only.

The right distribution of everything it serves is known exactly, and a pass costs microseconds. It keeps real books of
KV slots, without keys and values behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.runtime.costs import PassCosts
from paceline.runtime.kv import KVCache
from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelInfo, PassRows


class ToyRunner:
    """Serves a table of next-token probabilities."""

    def __init__(
        self,
        table: NDArray[np.float64],
        *,
        eos: frozenset[int] = frozenset(),
        context_length: int = 4096,
        pages: int = 4096,
        page_size: int = 16,
        vocab_padded: int | None = None,
        before_execute: Callable[[PassPlan], None] = lambda _: None,
    ) -> None:
        """Takes the model.

        Args:
            table: [vocab, vocab], row t is the distribution after token t.
            eos: tokens that end a reply.
            context_length: most tokens of prompt and reply together.
            pages: KV pages.
            page_size: tokens a page.
            vocab_padded: width of a row of logits; the padding has logit 9, so a sampler that forgets to mask it shows.
            before_execute: called with every plan before it runs; may raise or block, as a failing model would.
        """
        vocab = len(table)
        padded = vocab if vocab_padded is None else vocab_padded
        logits = np.full((vocab, padded), 9.0)
        with np.errstate(divide="ignore"):
            logits[:, :vocab] = np.log(table)
        self._logits = torch.from_numpy(logits.astype(np.float32))
        self._before_execute = before_execute
        self.info = ModelInfo(
            name="toy",
            vocab_size=vocab,
            vocab_padded=padded,
            context_length=context_length,
            context_reason="the toy model's limit",
            eos_token_ids=eos,
            dtype="float32",
            device="cpu",
        )
        self.kv = KVCache(pages, page_size)
        self.costs = PassCosts.unmeasured()

    def execute(self, plan: PassPlan) -> PassRows:
        """Looks the wanted rows up."""
        start = time.perf_counter()
        try:
            for segment in plan.segments:
                self.kv.begin(segment.sequence, len(segment), segment.base)
            self._before_execute(plan)
        except BaseException:
            for segment in plan.segments:
                self.kv.drop_scratch(segment.sequence)
            raise
        index: dict[tuple[int, int], int] = {}
        last: list[int] = []
        for number, segment in enumerate(plan.segments):
            for node in segment.rows:
                index[number, node] = len(last)
                last.append(int(segment.tokens[node - segment.base]))
        rows = self._logits[torch.tensor(last, dtype=torch.int64)]
        return PassRows(rows, index, time.perf_counter() - start, plan.tokens, plan.tokens)
