"""What the suffix proposer's store costs: microseconds a lookup and a tree, bytes and microseconds a token learned."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.drafter.ngrams import LONGEST, context_keys
from paceline.drafter.proposer import DraftOptions, Want
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams

VOCAB = 32_000
SIZES = (0, 20_000, 100_000)  # tokens held
TREES = 200
BUDGET, DEPTH, MIN_PATH_PROB = 8, 8, 0.01


def repetitive_text(tokens: int, seed: int = 0) -> list[int]:
    """Made-up text that repeats itself: spans of what came before, and new words by Zipf's law."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, VOCAB + 1)
    words = rng.choice(VOCAB, tokens, p=weights / weights.sum()).tolist()
    text: list[int] = []
    while len(text) < tokens:
        if text and rng.random() < 0.7:
            start = int(rng.integers(len(text)))
            text += text[start : start + int(rng.geometric(0.3))]
        else:
            text.append(words[len(text)])
    return text[:tokens]


def store_costs(progress: Callable[[str], None], sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """A row for each size of the store. Trees grow below contexts of the store's own text, where it says most."""
    rows = []
    for size in sizes:
        progress(f"store of {size} tokens")
        store, text = TextStore(1000 * MB), repetitive_text(max(size, 1000))
        if size:
            store.add(text, 0)
        learning_s = _seconds(lambda: _learn_all(store))  # noqa: B023 - called at once
        proposer = SuffixProposer(store, DEPTH, MIN_PATH_PROB)
        options = DraftOptions(Proposal.RANKED, 1.0, SamplingParams(), frozenset(), VOCAB, learn=False)
        lookups, trees, nodes = [], [], 0
        for index in range(TREES):
            at = 64 + (len(text) - 64) * index // TREES
            context = text[at - 64 : at]
            lookups.append(_seconds(lambda: _look_up(store, context)))  # noqa: B023 - called at once
            proposer.open(index, np.asarray(context, dtype=np.int32), len(context), options)
            proposer.propose([Want(index, 0)])  # reads the context
            began = time.perf_counter()
            (growth,) = proposer.propose([Want(index, BUDGET)])
            trees.append(time.perf_counter() - began)
            nodes += 0 if growth is None else len(growth.tree)
            proposer.close(index)
        rows.append(
            {
                "tokens": store.tokens,
                "lookup_us": float(np.median(lookups)) * 1e6,
                "tree_us": float(np.median(trees)) * 1e6,
                "nodes": nodes / TREES,
                "bytes_per_token": store.bytes / size if size else None,
                "learn_us_per_token": learning_s * 1e6 / size if size else None,
            }
        )
    return rows


def store_note(row: dict[str, Any]) -> str:
    """A row in words."""
    words = (
        f"store of {row['tokens']} tokens: {row['lookup_us']:.0f} us a lookup of all lengths of a context,"
        f" {row['tree_us']:.0f} us a tree of {row['nodes']:.1f} nodes (budget {BUDGET})"
    )
    if not row["tokens"]:
        return words
    return f"{words}, {row['bytes_per_token']:.0f} bytes and {row['learn_us_per_token']:.0f} us a token learned"


def _learn_all(store: TextStore) -> None:
    while store.learn_part():
        continue


def _look_up(store: TextStore, context: list[int]) -> None:
    found: dict[int, float] = {}
    for key in context_keys(context[-LONGEST:]):
        for grams in store.generations():
            grams.add_followers(key, 1.0, found)


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
