"""Equal prompts are read once: one session reads, the others wait for it and copy its KV.

Reading along would give nobody a token earlier: a pass reads prompts oldest first. Slots are copied and not shared, so
that each session keeps its KV in one run and needs no more room than it has reserved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.runtime.kv import KVCache
from paceline.target.counters import Counters
from paceline.target.row_cache import RowCache
from paceline.target.served import HeldRow
from paceline.target.session import Session


class SharedPrompts:
    """Which sessions take part in the next step. Compute thread only."""

    def __init__(self, kv: KVCache, cache: RowCache, counters: Counters) -> None:
        """`cache` has the first rows of prompts that were read."""
        self._kv, self._cache, self._counters = kv, cache, counters

    def ready(self, moving: Sequence[Session], active: Sequence[Session]) -> list[Session]:
        """Those of `moving` that need not wait for another to read their prompt, oldest first as they come.

        A session without any KV copies that of an `active` one that has read the same prompt. If its first row is known
        by then it copies the whole prompt and holds the row; else the last token is left to be computed, for its row.
        """
        if all(self._length(session) for session in moving):
            return list(moving)
        read = [session for session in active if self._length(session)]
        reading = [session for session in moving if self._length(session)]
        ready = []
        for session in moving:
            if self._length(session) or _shareable(session) == 0:
                ready.append(session)
                continue
            row = self._row(session)
            source = next((each for each in read if self._has_read(each, session)), None)
            if source is not None:
                self._copy(source, session, row)
            elif row is None:
                if any(_same_prompt(each, session) for each in reading):
                    continue
                reading.append(session)
            ready.append(session)
        return ready

    def _has_read(self, source: Session, session: Session) -> bool:
        return self._length(source) >= session.context.prompt_length and _same_prompt(source, session)

    def _copy(self, source: Session, session: Session, row: HeldRow | None) -> None:
        whole = row is not None and session.context.reply_length == 0
        tokens = session.context.prompt_length if whole else _shareable(session)
        self._kv.copy_prefix(self._sequence(source), self._sequence(session), tokens)
        session.held = row if whole else None
        self._counters.add(shared_prompt_tokens=tokens)

    def _row(self, session: Session) -> HeldRow | None:
        """The row at the end of the session's context; it draws from it at once, whoever reads the prompt."""
        return self._cache.find(session.request, session.context.copy(0)) if session.rounds == 0 else None

    def _length(self, session: Session) -> int:
        return self._kv.length(self._sequence(session))

    @staticmethod
    def _sequence(session: Session) -> int:
        assert session.sequence is not None
        return session.sequence


def _shareable(session: Session) -> int:
    """Tokens of the prompt that are not the last of the context: that one has to be computed for its row."""
    return min(session.context.prompt_length, len(session.context) - 1)


def _same_prompt(one: Session, other: Session) -> bool:
    return np.array_equal(one.request.prompt, other.request.prompt)
