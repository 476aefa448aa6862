"""What a session is asked to do, resolved and validated."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftWish:
    """What a request wants of the drafter. It changes how fast tokens come, never which."""

    budget: int = 0  # draft nodes per round; 0 decodes plainly
    coupled: bool = False  # children ranked under the target's own noise instead of by probability alone
    strength: float = 2.0  # weight of the drafter's probabilities against that noise; coupled proposals only


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class SessionRequest:
    """A request whose fields are all resolved and in range."""

    prompt: NDArray[np.int32]  # [prompt] int32, at least one
    max_tokens: int  # of the reply, delivered ones included
    delivered: NDArray[np.int32] = field(default_factory=_no_tokens)  # [delivered] int32, sent by an earlier replica
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    wish: DraftWish = field(default_factory=DraftWish)
    request_id: str = ""
    deadline: float | None = None  # on the engine's clock, seconds; None for none
