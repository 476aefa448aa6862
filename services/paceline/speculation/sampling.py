"""What a request serves: the parameters that turn logits into a row, and the address of its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

GREEDY_BELOW = 1e-5  # temperatures below this are greedy: exp(gap / temperature) would overflow float64's useful range
MAX_TEMPERATURE = 1e6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Resolved sampling parameters; build with every field, validate at the border with `faults`."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0  # 1 keeps all, 0 is the argmax
    seed: int = 0  # 0 .. 2**64 - 1
    choice: int = 0  # index of the reply among n

    @property
    def greedy(self) -> bool:
        """True if every row is one-hot at the argmax."""
        return self.temperature < GREEDY_BELOW or self.top_p == 0.0 or self.top_k == 1

    def faults(self, vocab_size: int) -> list[tuple[str, object, str]]:
        """(field, value, allowed range) of each field out of range; empty if all are good."""
        found: list[tuple[str, object, str]] = []
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= MAX_TEMPERATURE):
            found.append(("temperature", self.temperature, f"0 to {MAX_TEMPERATURE:g}"))
        if not 0 <= self.top_k <= vocab_size:
            found.append(("top_k", self.top_k, f"0 (all) to {vocab_size}"))
        if not (math.isfinite(self.top_p) and 0.0 <= self.top_p <= 1.0):
            found.append(("top_p", self.top_p, "0 to 1"))
        if not 0 <= self.seed < 2**64:
            found.append(("seed", self.seed, "0 to 2**64 - 1"))
        return found
