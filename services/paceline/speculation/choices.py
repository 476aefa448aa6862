"""The choice interface: all randomness of verification enters here, so that tests can walk every outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.speculation.noise import Purpose, exponential, noise_key, uniform
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams


class Choices(Protocol):
    """Outcomes of random choices, addressed by position so that they do not depend on the order of asking."""

    def draw(self, row: Row, position: int, purpose: Purpose = Purpose.DRAW) -> int:
        """A token drawn from `row` for `position` of the full context; `purpose` is DRAW or RESIDUAL."""
        ...

    def accept(self, prob: float, position: int, sibling: int) -> bool:
        """True with probability `prob`; `sibling` counts the tests made at one position."""
        ...


@dataclass(frozen=True, slots=True)
class SeededChoices:
    """Choices by the request's noise (THEORY 1): the same token for the same row and position, with any company.

    `plain` is the stream of plain draws. Nucleus requests and those with sampled proposals have one of their own, since
    a drafter may have learned what the stream of others gave: whether there is a tree would depend on the draw.
    """

    params: SamplingParams
    plain: Purpose = Purpose.DRAW

    def draw(self, row: Row, position: int, purpose: Purpose = Purpose.DRAW) -> int:
        """Gumbel-max over the support, ties to the lowest id; greedy requests take the argmax."""
        if len(row.token_ids) == 1:
            return int(row.token_ids[0])
        if self.params.greedy:
            return row.argmax()
        stream = self.plain if purpose is Purpose.DRAW else purpose
        key = noise_key(self.params.seed, self.params.choice, position, stream)
        return int(row.token_ids[np.argmax(row.probs / exponential(key, row.token_ids))])

    def accept(self, prob: float, position: int, sibling: int) -> bool:
        """A uniform of the accept stream, which no draw looks at, against `prob`: 0 never passes, 1 always does."""
        key = noise_key(self.params.seed, self.params.choice, position, Purpose.ACCEPT)
        return uniform(key, sibling) < prob
