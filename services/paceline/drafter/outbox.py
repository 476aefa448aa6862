"""Replies on their way to one target."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from paceline.drafter.messages import Reply


class Outbox:
    """Holds the newest reply of each session until it is written, so a target that does not read costs no more.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._replies: dict[int, Reply] = {}
        self._moved = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    def put(self, replies: Iterable[Reply]) -> None:
        """Adds replies; each takes the place of an earlier one of its session that still waits.

        But a fault stays until the session is opened anew: what follows it can only be that the session is not open.
        """
        for reply in replies:
            waiting = self._replies.get(reply.session)
            if waiting is None or waiting.fault is None or waiting.epoch < reply.epoch:
                self._replies[reply.session] = reply
        self._moved.set()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes; `error` says why, None that the target is done. The first call counts."""
        if not self._ended:
            self._ended, self._error = True, error
        self._moved.set()

    async def take(self) -> list[Reply]:
        """All replies that wait, at least one; none once it has ended. Raises the error it was ended with."""
        while not self._replies and not self._ended:
            self._moved.clear()
            await self._moved.wait()
        if self._error is not None:
            raise self._error
        taken, self._replies = list(self._replies.values()), {}
        return taken
