"""Nucleus verification: which draft tokens are good enough, and how far a reply may deviate (THEORY 4).

Source: Li et al., Nucleus Speculative Decoding, arXiv 2610.07822: accept what the exact rule accepts or what lies in
the target's nucleus. The limits and their certificates are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from enum import StrEnum

from paceline.speculation.sampling import GREEDY_BELOW, MAX_TEMPERATURE, SamplingParams

_SLACK = 1e-12  # a float64 sum equal to its limit but for rounding is within it


class Limit(StrEnum):
    """What keeps a relaxation off."""

    DEVIATION = "max_deviation"
    PER_TOKEN = "max_deviation_per_token"
    COUNT = "max_relaxations"


@dataclass(frozen=True, slots=True)
class Nucleus:
    """Settings of nucleus verification. A limit that is None does not bind."""

    mass: float  # of the nucleus, 0 to 1; 0 is the exact rule
    temperature: float | None = None  # of the row the nucleus is taken on; None: the served one, or 1 at temperature 0
    max_deviation: float | None = None  # total variation of the whole reply's law from the exact one
    max_deviation_per_token: float | None = None  # the same per token of the reply, as a mean rate
    max_relaxations: int | None = None  # tokens of a reply that the exact rule had rejected

    def faults(self) -> list[tuple[str, object, str]]:
        """(field, value, allowed range) of each field out of range; empty if all are good."""
        found: list[tuple[str, object, str]] = []
        if not (math.isfinite(self.mass) and 0.0 <= self.mass <= 1.0):
            found.append(("mass", self.mass, "0 (the exact rule) to 1"))
        if self.temperature is not None and not (0.01 <= self.temperature <= MAX_TEMPERATURE):
            found.append(("temperature", self.temperature, f"0.01 to {MAX_TEMPERATURE:g}"))
        for name in (Limit.DEVIATION, Limit.PER_TOKEN):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0.0):
                found.append((str(name), value, "0 or more"))
        if self.max_relaxations is not None and self.max_relaxations < 0:
            found.append((str(Limit.COUNT), self.max_relaxations, "0 or more"))
        return found

    def row_params(self, served: SamplingParams) -> SamplingParams:
        """Parameters of the row that the nucleus is taken on: the served top-k and top-p at the nucleus temperature.

        At temperature 0 the served row is one-hot, and the nucleus is taken at 1.
        """
        if self.temperature is not None:
            return changed(served, temperature=self.temperature)
        return served if served.temperature >= GREEDY_BELOW else changed(served, temperature=1.0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a reply's relaxations have cost so far."""

    spent: float = 0.0  # sum of the chances, at each node where relaxing was allowed, that a relaxation fires
    relaxed: int = 0  # tokens kept although the exact rule had rejected them
    withheld: Mapping[Limit, int] = field(default_factory=dict)  # nodes where a limit kept relaxing off

    def allow(self, rule: Nucleus, eps: float, index: int) -> tuple[bool, Ledger]:
        """Whether relaxing is allowed at a node, and the ledger after it. Ask before any test there is made.

        Args:
            rule: the limits.
            eps: chance that a relaxation fires there, given the siblings.
            index: of the token in the reply, 0 for the first.

        The total variation of the reply's law is at most the expected sum of the eps that were allowed, because a
        process coupled with the exact one leaves it only where a relaxation fires (THEORY 4, sequence).
        """
        limit = self._limit(rule, eps, index)
        if limit is None:
            return True, changed(self, spent=self.spent + eps)
        return False, changed(self, withheld={**self.withheld, limit: self.withheld.get(limit, 0) + 1})

    def fired(self) -> Ledger:
        """The ledger after a relaxation."""
        return changed(self, relaxed=self.relaxed + 1)

    def _limit(self, rule: Nucleus, eps: float, index: int) -> Limit | None:
        if rule.max_relaxations is not None and self.relaxed >= rule.max_relaxations:
            return Limit.COUNT
        after = self.spent + eps
        if rule.max_deviation is not None and after > rule.max_deviation * (1 + _SLACK):
            return Limit.DEVIATION
        rate = rule.max_deviation_per_token
        if rate is not None and after > rate * (index + 1) * (1 + _SLACK):
            return Limit.PER_TOKEN
        return None
