"""How a pass's tokens are shared out: plain tokens first, then prompts, then draft trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.target.turn import Turn


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Limits of a pass, in tokens."""

    step_tokens: int  # all together; at least the number of sessions, so that every one moves in every pass
    prefill_chunk: int  # prompt tokens in a pass that other sessions share

    def draft_share(self, decoding: int, drafting: int, reading: int) -> int:
        """Draft nodes each of `drafting` sessions may have, 0 under full load.

        `decoding` sessions need one plain token each; `reading` sessions still read their prompt.
        """
        left = self.step_tokens - decoding
        if reading:
            left -= min(self.prefill_chunk, left)
        return left // drafting if drafting else 0

    def pack(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns of one pass, prompts cut to chunks, oldest first; those that get no token now are left out."""
        decoding = [turn for turn in turns if not turn.reads]
        left = self.step_tokens - sum(turn.tokens for turn in decoding)
        if decoding:
            left = min(left, self.prefill_chunk)
        packed = []
        for turn in turns:
            if not turn.reads:
                packed.append(turn)
            elif left > 0:
                chunk = min(turn.pending, left)
                left -= chunk
                packed.append(replace(turn, chunk=chunk))
        return packed
