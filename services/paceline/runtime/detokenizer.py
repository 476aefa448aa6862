"""Incremental text of a growing token list: joined, the pieces are the decoding of all tokens."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from paceline.runtime.tokenizer import TextTokenizer

_REPLACEMENT = "\ufffd"
_MAX_INCOMPLETE = 3  # characters that the beginning of one UTF-8 character may read as
_WIDE = 64  # tokens; a window that has grown to a multiple of this is looked at for a place to cut
_MAX_TENTATIVE = 256  # byte tokens in a row, beyond which their text is not looked at before they end


class Detokenizer:
    """Decodes a window of recent tokens and releases what is new and cannot change any more.

    A token's text depends on its neighbours (spaces, characters split over tokens), so tokens cannot be decoded one by
    one. Text is *clean* where it does not end within a character. The window begins at a token before which the text
    was clean and ends with the last token; it begins with a token whose text is out already, since some decoders drop
    a space before the first token they are given. Time per token depends on the window, not on the length of the text.

    Tokens that stand for single bytes (SentencePiece's byte fallback) stand or fall together: the decoder makes every
    byte of a row of them a U+FFFD if the row as a whole is not UTF-8. So they are held until the row has ended.
    """

    __slots__ = ("_bytes", "_clean", "_row", "_shown", "_tokenizer", "_window")

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes: Mapping[int, int] = getattr(tokenizer, "byte_tokens", {})
        self._window: list[int] = []
        self._clean = 0  # tokens of the window up to the last clean place
        self._shown = 0  # characters of the window's text that are out
        self._row: _ByteRow | None = None  # the row of byte tokens that the window ends with

    def push(self, tokens: Sequence[int]) -> str:
        """Adds tokens and returns the text that is certain now."""
        return "".join([self._push(token) for token in tokens])

    def tentative(self) -> str:
        """Text that would follow if the last token were the last of all, incomplete characters left out."""
        row = self._row
        if row is None or not row.complete or row.length > _MAX_TENTATIVE:
            return ""
        return self._tokenizer.decode(self._window)[self._shown :]

    def flush(self) -> str:
        """The text still held back; call once, at the end."""
        text = self._tokenizer.decode(self._window)[self._shown :]
        self._shown += len(text)
        return text

    def _push(self, token: int) -> str:
        byte = self._bytes.get(token)
        if byte is not None:
            self._window.append(token)
            self._row = self._row or _ByteRow()
            self._row.add(byte)
            return ""
        if self._row is not None:
            if self._skipped(token):
                return ""
            self._row = None
        self._window.append(token)
        return self._release()

    def _release(self) -> str:
        text = self._tokenizer.decode(self._window)
        incomplete = _incomplete(text)
        shown = len(text) - incomplete
        released = text[self._shown : shown]
        self._shown = max(self._shown, shown)
        if not released and self._skipped(self._window[-1]):
            self._window.pop()
        elif incomplete or not released:
            self._cut(text)
        else:
            if self._clean:
                self._window = self._window[self._clean :]
                self._shown = len(self._tokenizer.decode(self._window))
            self._clean = len(self._window)
        return released

    def _skipped(self, token: int) -> bool:
        """True for special tokens: they are left out before anything is put together, so nothing depends on them."""
        return not self._tokenizer.decode([token, token])  # twice, since a lone leading space may be dropped

    def _cut(self, text: str) -> None:
        """Keeps a window short whose text will not become clean, as when a model repeats a byte that ends nothing."""
        if len(self._window) % _WIDE:
            return
        half = len(self._window) // 2
        left, right = self._tokenizer.decode(self._window[:half]), self._tokenizer.decode(self._window[half:])
        # If the two halves read alone as they read together, no character lies across the cut, and none ever will.
        if right and left + right == text and len(left) <= self._shown:
            self._window = self._window[half:]
            self._shown -= len(left)
            self._clean = 0


class _ByteRow:
    """Byte tokens in a row: whether they are whole characters so far."""

    __slots__ = ("_broken", "_decoder", "length")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._broken = False
        self.length = 0

    def add(self, byte: int) -> None:
        """Adds a byte. One that fits nothing breaks the row for good."""
        self.length += 1
        if not self._broken:
            try:
                self._decoder.decode(bytes([byte]))
            except UnicodeDecodeError:
                self._broken = True

    @property
    def complete(self) -> bool:
        """True if the row is UTF-8 as it stands."""
        return not self._broken and not self._decoder.getstate()[0]


def _incomplete(text: str) -> int:
    """Characters at the end of `text` that may be the beginning of one character."""
    count = 0
    while count < min(len(text), _MAX_INCOMPLETE) and text[-1 - count] == _REPLACEMENT:
        count += 1
    return count
