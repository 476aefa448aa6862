"""The text of a reply, token by token, and the token at which a stop string completes.

Target and gateway run the same code over the same tokens: the target to stop in that round, the gateway to show text.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.detokenizer import Detokenizer
from paceline.runtime.stop import StopMatcher, StopOutcome
from paceline.runtime.tokenizer import TextTokenizer


class ReplyText:
    """Detokenises and looks for stop strings."""

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)

    def push(self, token: int) -> StopOutcome:
        """Adds one token. After a match, nothing more may be pushed."""
        return self._matcher.push(self._detokenizer.push([token]))

    def flush(self) -> StopOutcome:
        """What is still held back, at the end of a reply that no stop string ended."""
        outcome = self._matcher.push(self._detokenizer.flush())
        if outcome.matched is not None:
            return outcome
        return StopOutcome(outcome.text + self._matcher.flush(), None)
