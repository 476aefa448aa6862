"""What a model's chat template puts around one user turn, as tokens."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import InvalidField
from paceline.runtime.tokenizer import TextTokenizer

_PROBES = ("a", "B")  # two contents that share no token


@dataclass(frozen=True, slots=True)
class UserTurn:
    """Tokens before and behind what a user says; behind it the assistant's turn has begun."""

    before: tuple[int, ...]
    behind: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: TextTokenizer, model: str) -> UserTurn:
        """Found by comparing two conversations. Raises InvalidField for a model without a chat template."""
        if not tokenizer.has_chat_template:
            remedy = "Give --prompts FILE, or take an instruction-tuned target."
            raise InvalidField("--target", model, "a model with a chat template, to write prompts of its own", remedy)
        one, other = (tokenizer.apply_chat([("user", content)]) for content in _PROBES)
        before = next(index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        behind = next(
            index for index, pair in enumerate(zip(reversed(one), reversed(other), strict=False)) if pair[0] != pair[1]
        )
        return cls(tuple(one[:before]), tuple(one[len(one) - behind :]))
