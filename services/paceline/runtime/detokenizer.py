"""Incremental text of a growing token list: joined, the pieces are the decoding of all tokens."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.tokenizer import TextTokenizer

_REPLACEMENT = "\ufffd"
_MAX_HELD = 64  # tokens; bytes that make no character for longer than this never will


class Detokenizer:
    """Decodes a window of recent tokens twice, without and with the new ones, and releases the difference.

    A token's text depends on its neighbours (spaces, characters split over tokens), so tokens cannot be decoded one by
    one. The window starts at a token whose text is out; what ends in an incomplete character is held back.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._window = 0  # tokens before it no longer matter
        self._out = 0  # text of tokens before it has been released

    def push(self, tokens: Sequence[int]) -> str:
        """Adds tokens and returns the text that is certain now."""
        released = []
        for token in tokens:
            self._tokens.append(token)
            released.append(self._release(final=False))
        return "".join(released)

    def flush(self) -> str:
        """The text still held back; call once, at the end."""
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        known = self._tokenizer.decode(self._tokens[self._window : self._out])
        text = self._tokenizer.decode(self._tokens[self._window :])
        incomplete = text.endswith(_REPLACEMENT) and len(self._tokens) - self._out < _MAX_HELD
        if (incomplete and not final) or len(text) <= len(known) or not text.startswith(known):
            return ""
        self._window, self._out = self._out, len(self._tokens)
        return text[len(known) :]
