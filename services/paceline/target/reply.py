"""A session's reply on its way from the compute thread to a reader on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import PacelineError
from paceline.target.finish import Finish
from paceline.target.outbox import Outbox
from paceline.target.record import RoundRecord


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply."""

    tokens: list[int]  # at least one
    rounds: list[RoundRecord]  # that gave them


class ReplyStream:
    """Tokens, then a Finish or an error. What is unread is bounded: beyond `max_unread` tokens the session pauses.

    Nothing is dropped. A round may overshoot the bound by its own tokens.
    """

    def __init__(self, outbox: Outbox, max_unread: int, caught_up: Callable[[], None]) -> None:
        """`caught_up` is called on the event loop when a reader that was behind has read half of the bound."""
        self._outbox, self._max_unread, self._caught_up = outbox, max_unread, caught_up
        self._lock = threading.Lock()
        self._unread = 0  # tokens handed over and not read; guarded by the lock
        self._behind = False  # guarded by the lock
        self._tokens: list[int] = []  # event loop only, as is all below
        self._rounds: list[RoundRecord] = []
        self._end: Finish | PacelineError | None = None
        self._news = asyncio.Event()

    # -- compute thread (Sink) ----------------------------------------------------------------------------------------

    def tokens(self, tokens: Sequence[int], round_: RoundRecord) -> None:
        """Delivers tokens and the round that gave them."""
        with self._lock:
            self._unread += len(tokens)
        self._outbox.post(lambda: self._take(tokens, round_))

    def finish(self, finish: Finish) -> None:
        """The end, after the last tokens."""
        self._outbox.post(lambda: self._stop(finish))

    def fail(self, error: PacelineError) -> None:
        """The end by an error."""
        self._outbox.post(lambda: self._stop(error))

    def behind(self) -> bool:
        """True if the reader must catch up first; it will call `caught_up`."""
        with self._lock:
            self._behind = self._unread >= self._max_unread
            return self._behind

    # -- event loop ---------------------------------------------------------------------------------------------------

    def _take(self, tokens: Sequence[int], round_: RoundRecord) -> None:
        self._tokens.extend(tokens)
        self._rounds.append(round_)
        self._news.set()

    def _stop(self, end: Finish | PacelineError) -> None:
        self._end = end
        self._news.set()

    async def next(self) -> Piece | Finish:
        """All tokens that have come since the last call, or, after the last of them, the Finish.

        Raises the error the session ended with.
        """
        while True:
            if self._tokens:
                piece = Piece(self._tokens, self._rounds)
                self._tokens, self._rounds = [], []
                self._read(len(piece.tokens))
                return piece
            if isinstance(self._end, Finish):
                return self._end
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self._news.wait()

    def _read(self, count: int) -> None:
        with self._lock:
            self._unread -= count
            wake = self._behind and self._unread <= self._max_unread // 2
            if wake:
                self._behind = False
        if wake:
            self._caught_up()
