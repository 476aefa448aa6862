"""Sessions of the loop: waiting in order, or decoding with KV of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from paceline.runtime.kv import KVCache, OutOfPages
from paceline.target.session import Session


class Roster:
    """Who waits and who decodes. A session enters with all the KV it can ever need, so that none is ever preempted."""

    def __init__(self, kv: KVCache, max_active: int) -> None:
        self._kv, self._max_active = kv, max_active
        self._queued: deque[Session] = deque()
        self._active: dict[int, Session] = {}  # oldest first

    @property
    def active(self) -> list[Session]:
        """Sessions with KV, oldest first."""
        return list(self._active.values())

    @property
    def active_count(self) -> int:
        """Sessions with KV."""
        return len(self._active)

    def __iter__(self) -> Iterator[Session]:
        yield from self._active.values()
        yield from self._queued

    def find(self, session: int) -> Session | None:
        """The session of that id, decoding or waiting."""
        found = self._active.get(session)
        return found or next((each for each in self._queued if each.id == session), None)

    def queue(self, session: Session) -> None:
        """Adds a session at the end of the queue."""
        self._queued.append(session)

    def admit(self) -> list[Session]:
        """Moves sessions from the queue, in order, as far as slots and KV reach. A short one never overtakes."""
        admitted = []
        while self._queued and len(self._active) < self._max_active:
            session = self._queued[0]
            try:
                session.sequence = self._kv.open(reserve_tokens=reserve_tokens(session))
            except OutOfPages:
                break
            self._queued.popleft()
            self._active[session.id] = session
            admitted.append(session)
        return admitted

    def remove(self, session: Session) -> None:
        """Takes a session out and frees its KV."""
        if self._active.pop(session.id, None) is None:
            self._queued.remove(session)
        elif session.sequence is not None:
            self._kv.release(session.sequence)
            session.sequence = None


def reserve_tokens(session: Session) -> int:
    """KV a session can need at most: its whole reply, and a tree below the last token."""
    return len(session.context) + session.ending.tokens_left + session.request.wish.budget
