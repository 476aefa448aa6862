"""Seconds that looks of a model are weighed against, as a test names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    """Without any, every look that adds something is made."""

    round_s: float | None = None
    each_s: float | None = None  # of a pass

    def pass_s(self, tokens: int, sessions: int) -> float | None:
        return self.each_s

    def passed(self, tokens: int, seconds: float) -> None:
        pass

    def rounded(self, seconds: float) -> None:
        pass
