"""A tokenizer for table models: every token is one word."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import InvalidField
from paceline.runtime.tokenizer import fingerprint_of


class ToyTokenizer:
    """Token i reads as `words[i]`; encoding takes the longest word that fits."""

    has_chat_template = True

    def __init__(self, words: Sequence[str], eos_token_ids: frozenset[int] = frozenset()) -> None:
        """`words` differ and are not empty."""
        self._words = list(words)
        self._ids = {word: index for index, word in enumerate(words)}
        self._longest = max(map(len, words))
        self.eos_token_ids = eos_token_ids
        self.vocab_size = len(words)
        self.fingerprint = fingerprint_of(self._words, {})

    @classmethod
    def numbered(cls, size: int, eos_token_ids: frozenset[int] = frozenset()) -> ToyTokenizer:
        """Token i reads as `<i>`."""
        return cls([f"<{index}>" for index in range(size)], eos_token_ids)

    def token_table(self) -> list[str]:
        """The words."""
        return list(self._words)

    def special_ids(self) -> dict[str, int]:
        """None."""
        return {}

    def encode(self, text: str) -> list[int]:
        """Greedy longest match. Raises InvalidField for text that is not made of words."""
        ids, start = [], 0
        while start < len(text):
            for length in range(min(self._longest, len(text) - start), 0, -1):
                if (index := self._ids.get(text[start : start + length])) is not None:
                    ids.append(index)
                    start += length
                    break
            else:
                raise InvalidField("text", text[start : start + 20], "words of the toy tokenizer")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The words, end tokens left out."""
        return "".join(self._words[index] for index in ids if index not in self.eos_token_ids)

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The contents, one after the other."""
        return [index for _, content in messages for index in self.encode(content)]
