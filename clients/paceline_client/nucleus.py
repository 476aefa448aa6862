"""Nucleus verification as people ask for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nucleus:
    """Accepts a draft token also where the exact rule rejects it, if it lies in the target's nucleus.

    The limits are independent, and each that is set holds; None does not bind.
    """

    mass: float  # of the nucleus, 0 (the exact rule) to 1
    temperature: float | None = None  # of the row the nucleus is taken on, 0.01 to 1e6; None: the served one, or 1 at 0
    max_deviation: float | None = None  # total variation of the whole reply's law from the exact one, 0 or more
    max_deviation_per_token: float | None = None  # the same per token of the reply, as a mean rate, 0 or more
    max_relaxations: int | None = None  # tokens of the reply that the exact rule had rejected, 0 or more
