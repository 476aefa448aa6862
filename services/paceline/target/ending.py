"""Where a reply ends: end-of-sequence tokens, stop strings, max_tokens, the context limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.target.finish import FinishReason


class Match(Protocol):
    """What a token did to the text of a reply."""

    @property
    def matched(self) -> str | None:
        """The stop string whose match the token completed."""


class StopText(Protocol):
    """Text of a reply, watched for stop strings (paceline.runtime.reply_text.ReplyText)."""

    def push(self, token: int) -> Match:
        """Adds a token."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The part of a round's tokens that the client gets."""

    tokens: tuple[int, ...]
    reason: FinishReason | None  # None: the reply goes on
    stop_match: str = ""


class Ending:
    """Cuts the tokens of each round where the reply ends. Every emitted token passes through once, in order."""

    __slots__ = ("_eos", "_left", "_text")

    def __init__(self, eos: frozenset[int], text: StopText | None, tokens_left: int) -> None:
        """`eos` is empty where the request ignores it; `text` None where it has no stop strings."""
        self._eos, self._text, self._left = eos, text, tokens_left

    @property
    def tokens_left(self) -> int:
        """Most tokens that may still be delivered."""
        return self._left

    def is_eos(self, token: int) -> bool:
        """True if `token` ends the reply. Changes nothing."""
        return token in self._eos

    def cut(self, tokens: Sequence[int]) -> Delivery:
        """The leading part up to and including the token that ends the reply."""
        for index, token in enumerate(tokens):
            if self._left <= 0:
                return Delivery(tuple(tokens[:index]), FinishReason.LENGTH)
            self._left -= 1
            if token in self._eos:
                return Delivery(tuple(tokens[: index + 1]), FinishReason.STOP)
            matched = self._text.push(token).matched if self._text is not None else None
            if matched is not None:
                return Delivery(tuple(tokens[: index + 1]), FinishReason.STOP, matched)
        return Delivery(tuple(tokens), FinishReason.LENGTH if self._left <= 0 else None)
