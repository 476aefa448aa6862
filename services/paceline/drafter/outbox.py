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
        """Adds replies; one that an earlier reply of the session still waits before takes its place."""
        for reply in replies:
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
