"""The text of a reply, token by token, and the token at which a stop string completes.

Target and gateway run the same code over the same tokens: the target to stop in that round, the gateway to show text.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.detokenizer import Detokenizer
from paceline.runtime.stop import StopMatcher, StopOutcome
from paceline.runtime.tokenizer import TextTokenizer


class ReplyText:
    """Detokenises and looks for stop strings.

    The outcomes depend on the tokens alone, not on the rounds that brought them: a match is reported for the token
    that completes it, and the text of all outcomes ends right before it.
    """

    __slots__ = ("_detokenizer", "_matcher")

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str]) -> None:
        """`stops` may be empty; raises InvalidField if one of them is an empty string."""
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)

    def push(self, token: int) -> StopOutcome:
        """Adds one token. After a match nothing more is shown."""
        text = self._detokenizer.push((token,))
        if not self._matcher.active:
            return StopOutcome(text, None)
        return self._matcher.push(text, self._detokenizer.tentative())

    def flush(self) -> StopOutcome:
        """What is still held back, at the end of a reply that no stop string ended.

        It can hold a match only of a stop string with U+FFFD, which stands for a character that never became whole.
        """
        outcome = self._matcher.push(self._detokenizer.flush())
        if outcome.matched is not None:
            return outcome
        return StopOutcome(outcome.text + self._matcher.flush(), None)
