"""A session in the compute thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import PacelineError
from paceline.speculation.choices import Choices
from paceline.speculation.nucleus import Ledger
from paceline.target.calibration import Calibration
from paceline.target.context import Context
from paceline.target.drafting import Drafting
from paceline.target.ending import Delivery, Ending
from paceline.target.fallback import Fallback
from paceline.target.finish import Finish, FinishReason, SessionStats
from paceline.target.grant import Grant
from paceline.target.pace import Chosen, Pace
from paceline.target.record import RoundRecord
from paceline.target.request import SessionRequest
from paceline.target.served import HeldRow
from paceline.target.session_budget import SessionBudget


class Sink(Protocol):
    """Where a session's tokens go. Called in the compute thread, never blocks."""

    def tokens(self, tokens: Sequence[int], round_: RoundRecord) -> None:
        """Delivers tokens, at least one, and the round that gave them."""

    def finish(self, finish: Finish) -> None:
        """The end, after the last tokens."""

    def fail(self, error: PacelineError) -> None:
        """The end by an error."""

    def behind(self) -> bool:
        """True if the reader has so much unread that the session must pause; it is told when to go on (Resume)."""


@dataclass(slots=True)
class RoundState:
    """The round a session is in. It ends with the walk of a tree, or with a token drawn without one."""

    chosen: Chosen
    began_at: float
    slow: bool = False  # drafting takes so long that it is overlapped, not waited for a second time
    focused: bool = False  # draw_first: a token was drawn and emitted, and the tree is wanted below it
    enough: bool = False  # draw_first: what is left of the tree below that token is verified at once
    emitted: int = 0  # tokens emitted in it so far


class Session:
    """State of one session. Committed KV covers the context without its pending tokens.

    While the prompt is read several tokens are pending; afterwards exactly one, the last, or none while a row is held.
    """

    __slots__ = (
        "accepted", "budget", "budgets", "calibration", "choices", "context", "drafted", "drafting", "ending",
        "fallbacks", "first_token_at", "grant", "held", "held_back", "id", "ledger", "pace", "paused", "relaxed",
        "request", "resumed", "round", "rounds", "row_hits", "row_passes", "selections", "sequence", "sink",
        "started_at", "untrusted",
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
        self.grant = Grant(0)  # of the round it is in, or was in last
        self.budget: SessionBudget | None = None  # None where the request names the budget, and before the first tree
        self.paused = False  # the reader is behind
        self.started_at = now
        self.first_token_at: float | None = None
        self.rounds = 0
        self.drafted = 0
        self.accepted = 0
        self.fallbacks: Counter[Fallback] = Counter()
        self.round: RoundState | None = None  # None between rounds
        self.held: HeldRow | None = None  # the row at the end of the context, whose tokens all have KV then
        self.pace = Pace()
        self.ledger: Ledger = request.ledger
        self.relaxed = request.ledger.relaxed  # delivered ones
        self.selections: Counter[str] = Counter()
        self.budgets: Counter[int] = Counter()  # rounds by nodes asked for, where the target chose
        self.row_passes = 0
        self.row_hits = 0
        self.held_back = 0  # tokens drawn and not emitted, to hold their row
        self.untrusted = False  # its draft trees break the computation; it is decoded plainly

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
                rounds=self.rounds,
                drafted=self.drafted,
                accepted=self.accepted,
                fallbacks={str(reason): count for reason, count in self.fallbacks.items()},
                relaxed=self.relaxed,
                deviation_spent=self.ledger.spent,
                limits={str(limit): count for limit, count in self.ledger.withheld.items()},
                selections=dict(self.selections),
                budgets=dict(self.budgets),
                row_passes=self.row_passes,
                row_hits=self.row_hits,
                held_back=self.held_back,
                strength=self.drafting.strength,
                nucleus=self.request.nucleus is not None,
            ),
            ttft_s=0.0 if first is None else first - self.started_at,
            total_s=now - self.started_at,
        )
