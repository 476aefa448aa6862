"""Totals of a replica since its start."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """A snapshot, consistent in itself."""

    passes: int  # passes run
    pass_tokens: int  # tokens computed in them, padding left out
    pass_s: float  # seconds spent in them
    emitted: int  # tokens delivered
    accepted: int  # draft tokens delivered
    drafted: int  # draft nodes verified
    relaxed: int  # of the accepted, those that only the nucleus rule accepted
    row_passes: int  # passes of one token for a row, over sessions
    row_hits: int  # rows taken from the row cache
    shared_prompt_tokens: int  # prompt tokens whose KV was copied from another session
    selections: Mapping[str, int]  # rounds by selection rule
    reason: str  # why `auto` chose as it did in its latest round
    budgets: Mapping[int, int]  # rounds by draft nodes asked for, where they were chosen here
    budget_reason: str  # why so many in the latest of them
    fallbacks: Mapping[str, int]  # rounds decoded plainly although a tree was wanted, by reason
    sessions: int  # sessions accepted
    faults: int  # sessions ended by a fault of their computation
    stale_frames: int  # frames from drafters dropped for an unknown session or an old epoch


_SUMS = (
    "passes", "pass_tokens", "emitted", "accepted", "drafted", "relaxed", "row_passes", "row_hits",
    "shared_prompt_tokens", "sessions", "faults", "stale_frames",
)  # fmt: skip


class Counters:
    """Written by the compute thread once per step, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()
        self._pass_s = 0.0
        self._fallbacks: Counter[str] = Counter()
        self._selections: Counter[str] = Counter()
        self._reason = ""
        self._budgets: Counter[int] = Counter()
        self._budget_reason = ""

    def add(self, *, pass_s: float = 0.0, fallbacks: Mapping[str, int] | None = None, **sums: int) -> None:
        """Adds to the fields of Totals named."""
        with self._lock:
            self._sums.update(sums)
            self._pass_s += pass_s
            if fallbacks:
                self._fallbacks.update(fallbacks)

    def selected(self, rule: str, reason: str) -> None:
        """Counts a round of `rule`; `reason` is empty where it was asked for."""
        with self._lock:
            self._selections[rule] += 1
            self._reason = reason or self._reason

    def granted(self, nodes: int, reason: str) -> None:
        """Counts a round for which so many draft nodes were asked for; no reason where the request named them."""
        if reason:
            with self._lock:
                self._budgets[nodes] += 1
                self._budget_reason = reason

    def totals(self) -> Totals:
        """A snapshot."""
        with self._lock:
            return Totals(
                **{name: self._sums[name] for name in _SUMS},
                pass_s=self._pass_s,
                selections=dict(self._selections),
                reason=self._reason,
                budgets=dict(self._budgets),
                budget_reason=self._budget_reason,
                fallbacks=dict(self._fallbacks),
            )
