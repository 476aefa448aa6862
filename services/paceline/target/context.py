"""A session's tokens: prompt and reply in one growing array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Context:
    """Prompt and emitted tokens. The token at index i has position i."""

    __slots__ = ("_length", "_tokens", "prompt_length")

    def __init__(self, prompt: NDArray[np.int32], delivered: NDArray[np.int32], capacity: int) -> None:
        """`capacity` is the most tokens it will ever hold."""
        self.prompt_length = len(prompt)
        self._length = len(prompt) + len(delivered)
        self._tokens = np.empty(max(capacity, self._length), dtype=np.int32)
        self._tokens[: len(prompt)] = prompt
        self._tokens[len(prompt) : self._length] = delivered

    def __len__(self) -> int:
        return self._length

    @property
    def reply_length(self) -> int:
        """Tokens after the prompt."""
        return self._length - self.prompt_length

    def append(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens."""
        self._tokens[self._length : self._length + len(tokens)] = tokens
        self._length += len(tokens)

    def copy(self, start: int, stop: int | None = None) -> NDArray[np.int32]:  # [n] int32
        """A copy of the tokens from `start` up to `stop` (None: the end)."""
        return self._tokens[start : self._length if stop is None else min(stop, self._length)].copy()
