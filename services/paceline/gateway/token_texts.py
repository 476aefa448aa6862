"""Texts of single tokens, as they read behind others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from paceline.v1 import common_pb2

if TYPE_CHECKING:
    from paceline.runtime.tokenizer import TextTokenizer


class TokenTexts:
    """Remembers the texts it was asked for: one a token of the vocabulary at most. Event loop only."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._names: list[str] | None = None

    def fill(self, rounds: Iterable[common_pb2.RoundTrace]) -> None:
        """Sets the texts of each round's tokens."""
        for trace in rounds:
            trace.tree_texts[:] = [self.of(token) for token in trace.tree_tokens]
            trace.emitted_texts[:] = [self.of(token) for token in trace.emitted]

    def of(self, token: int) -> str:
        """A token's text; the name of one that has none, such as an end token; empty for an id without a token.

        A token that is a part of a character reads as U+FFFD.
        """
        if not 0 <= token < self._tokenizer.vocab_size:
            return ""
        text = self._known.get(token)
        if text is None:
            text = self._known[token] = self._text(token) or self._name(token)
        return text

    def _text(self, token: int) -> str:
        alone = self._tokenizer.decode([token])
        twice = self._tokenizer.decode([token, token])  # some decoders drop a space before the first token
        return twice.removeprefix(alone) if twice.startswith(alone) else alone

    def _name(self, token: int) -> str:
        if self._names is None:
            self._names = self._tokenizer.token_table()
        return self._names[token]
