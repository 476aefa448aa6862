"""A session in the compute thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from paceline.errors import PacelineError
from paceline.speculation.choices import Choices
from paceline.target.calibration import Calibration
from paceline.target.context import Context
from paceline.target.drafting import Drafting
from paceline.target.ending import Delivery, Ending
from paceline.target.fallback import Fallback
from paceline.target.finish import Finish, FinishReason, SessionStats
from paceline.target.request import SessionRequest


class Sink(Protocol):
    """Where a session's tokens go. Called in the compute thread, never blocks."""

    def tokens(self, tokens: Sequence[int]) -> None:
        """Delivers tokens."""

    def finish(self, finish: Finish) -> None:
        """The end, after the last tokens."""

    def fail(self, error: PacelineError) -> None:
        """The end by an error."""

    def behind(self) -> bool:
        """True if the reader has so much unread that the session must pause; it is told when to go on (Resume)."""


class Session:
    """State of one session. Committed KV covers the context without its pending tokens.

    While the prompt is read several tokens are pending; afterwards exactly one, the last.
    """

    __slots__ = (
        "accepted", "calibration", "choices", "context", "drafted", "drafting", "ending", "fallbacks", "first_token_at",
        "id", "paused", "request", "resumed", "rounds", "sequence", "sink", "started_at",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        request: SessionRequest,
        sink: Sink,
        *,
        context: Context,
        choices: Choices,
        drafting: Drafting,
        ending: Ending,
        resumed: Delivery,
        now: float,
    ) -> None:
        self.id, self.request, self.sink = id, request, sink
        self.context, self.choices, self.drafting, self.ending = context, choices, drafting, ending
        self.resumed = resumed  # what the tokens of an earlier replica came to
        self.sequence: int | None = None  # KV sequence; None while queued
        self.calibration = Calibration()
        self.paused = False  # the reader is behind
        self.started_at = now
        self.first_token_at: float | None = None
        self.rounds = 0
        self.drafted = 0
        self.accepted = 0
        self.fallbacks: Counter[Fallback] = Counter()

    @property
    def useful_depth(self) -> int:
        """Deepest draft node that could still be delivered: a round also emits the drawn token."""
        return max(self.ending.tokens_left - 1, 0)

    def finish(self, reason: FinishReason, stop_match: str, now: float) -> Finish:
        """The record of its end."""
        first = self.first_token_at
        return Finish(
            reason=reason,
            stop_match=stop_match,
            prompt_tokens=self.context.prompt_length,
            completion_tokens=self.context.reply_length,
            stats=SessionStats(
                self.rounds, self.drafted, self.accepted, {str(k): n for k, n in self.fallbacks.items()}
            ),
            ttft_s=0.0 if first is None else first - self.started_at,
            total_s=now - self.started_at,
        )
