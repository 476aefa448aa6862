"""A reply as it grows: tokens, text, and what would end it. A request for several has one of these for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.gateway.requests import Resolved
from paceline.runtime.reply_text import ReplyText
from paceline.v1 import common_pb2, inference_pb2, target_pb2

if TYPE_CHECKING:
    from paceline.runtime.tokenizer import TextTokenizer


class Reply:
    """Collects what was delivered. It outlives the target that decodes it."""

    def __init__(
        self,
        resolved: Resolved,
        index: int,
        tokenizer: TextTokenizer,
        accepted_at: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`index` is its number among the request's; `accepted_at` is when that came, seconds on `clock`."""
        self.index = index
        self._resolved, self._accepted_at, self._clock = resolved, accepted_at, clock
        self._text = ReplyText(tokenizer, resolved.stops)
        self.delivered: list[int] = []
        self.relaxed_tokens = 0  # of `delivered`; with the next, what a target has to know that goes on with the reply
        self.deviation_spent = 0.0
        self._first_at = self._last_at = accepted_at
        self._matched = ""

    def take(self, tokens: Sequence[int], rounds: Sequence[common_pb2.RoundTrace] = ()) -> inference_pb2.Delta:
        """Delivers tokens that a target sent, with the rounds that gave them.

        What comes after the end of the reply is dropped.
        """
        now = self._clock()
        delta = inference_pb2.Delta(index=self.index)
        for token in tokens:
            if self.ended() is not None:
                break
            if not self.delivered:
                self._first_at = now
            self.delivered.append(token)
            delta.token_ids.append(token)
            outcome = self._text.push(token)
            delta.text += outcome.text
            self._matched = outcome.matched or ""
        self._last_at = now
        delta.rounds.extend(_delivered(rounds, len(delta.token_ids)))
        return delta

    def account(self, relaxed_tokens: int, deviation_spent: float) -> None:
        """What relaxations have cost up to the tokens just taken, those of earlier targets included."""
        self.relaxed_tokens, self.deviation_spent = relaxed_tokens, deviation_spent

    def ended(self) -> target_pb2.TargetFinish | None:
        """The end, if what was delivered amounts to one; its target may have died before saying so."""
        stopped = bool(self._matched or (self.delivered and self.delivered[-1] in self._resolved.eos_token_ids))
        if not stopped and len(self.delivered) < self._resolved.decode.max_tokens:
            return None
        reason = common_pb2.FINISH_REASON_STOP if stopped else common_pb2.FINISH_REASON_LENGTH
        return target_pb2.TargetFinish(reason=reason, stop_match=self._matched)

    def finish(self, end: target_pb2.TargetFinish) -> tuple[inference_pb2.Delta, inference_pb2.Finish]:
        """Text still held back, if any, and the last message. Called once."""
        reason, match, text = end.reason, self._matched, ""
        if not match:
            outcome = self._text.flush()
            text = outcome.text
            if outcome.matched is not None:  # the string ended in what was held back as an incomplete character
                reason, match = common_pb2.FINISH_REASON_STOP, outcome.matched
        finish = inference_pb2.Finish(
            reason=reason,
            stop_match=match,
            usage=common_pb2.Usage(prompt_tokens=self._resolved.prompt_tokens, completion_tokens=len(self.delivered)),
            speculation=self._speculation(end.speculation),
            timings=common_pb2.Timings(
                ttft_s=self._first_at - self._accepted_at, total_s=self._last_at - self._accepted_at
            ),
            seed=self._resolved.seed,
            model=self._resolved.model,
            index=self.index,
        )
        return inference_pb2.Delta(text=text, index=self.index), finish

    def _speculation(self, last: common_pb2.SpeculationStats) -> common_pb2.SpeculationStats:
        """Statistics of the target that ended the reply; what relaxations cost counts the lost ones' too."""
        whole = common_pb2.SpeculationStats()
        whole.CopyFrom(last)
        whole.relaxed_tokens = max(last.relaxed_tokens, self.relaxed_tokens)
        whole.deviation_spent = max(last.deviation_spent, self.deviation_spent)
        return whole


def _delivered(rounds: Sequence[common_pb2.RoundTrace], tokens: int) -> Iterator[common_pb2.RoundTrace]:
    """The rounds of the first `tokens` tokens; one that gave more is cut."""
    for trace in rounds:
        if trace.emitted and not tokens:
            return
        del trace.emitted[tokens:]
        tokens -= len(trace.emitted)
        yield trace
