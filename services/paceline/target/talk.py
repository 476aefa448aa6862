"""The compute thread's conversation with the drafter: one frame out per step, events in."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paceline.target.drafting import LinkView
from paceline.target.fallback import Fallback
from paceline.target.port import (
    Advance,
    Close,
    DraftFault,
    DraftPort,
    LinkDown,
    LinkUp,
    Open,
    RowTold,
    TreeArrived,
    Update,
)
from paceline.target.round import ask
from paceline.target.session import Session

log = logging.getLogger(__name__)


class DrafterTalk:
    """Says what moved and asks for trees; takes what comes back to the session it belongs to."""

    def __init__(self, link: LinkView, port: DraftPort, eos_token_ids: tuple[int, ...], *, learn: bool) -> None:
        """`learn`: whether drafters may learn from served text."""
        self.link = link
        self._port, self._eos, self._learn = port, eos_token_ids, learn
        self._warned: set[Fallback] = set()  # on this connection
        self._goodbyes: list[Update] = []  # last words for sessions that ended; they go with the next frame

    def tell(self, sessions: Sequence[Session], budget: int, now: float) -> None:
        """One frame of everything that moved. `budget` is what load allows each session, in draft nodes."""
        generation = self.link.generation
        if generation is None:
            return
        frame: list[Update] = list(self._goodbyes)
        told: list[tuple[Session, Open | Advance | RowTold]] = []
        for session in sessions:
            update = ask(session, budget, self._stops(session), self._learn, now)
            if update is not None:
                frame.append(update)
                told.append((session, update))
        if not frame:
            return
        if not self._port.send(generation, frame):  # it does not read: as good as a missed deadline
            self.link.missed()
            return
        self._goodbyes.clear()
        for session, update in told:
            session.drafting.sent(update, now)

    def _stops(self, session: Session) -> tuple[int, ...]:
        return () if session.request.ignore_eos else self._eos

    def linked(self, event: LinkUp | LinkDown) -> None:
        """The connection has changed. Sessions notice by its generation."""
        self._goodbyes.clear()  # the end of the stream has said them
        self._warned.clear()
        if isinstance(event, LinkUp):
            self.link.up(event.generation, event.proposer)
        else:
            self.link.down(event.reason)

    def heard(self, event: TreeArrived | DraftFault, session: Session | None, now: float) -> bool:
        """Takes a tree or a fault; False if it belongs to no session, or to an earlier incarnation of one."""
        if session is None:
            return False
        if isinstance(event, TreeArrived):
            known = session.drafting.arrived(event, session.context)
            if known and session.drafting.took_s is not None:
                session.pace.drafted(session.drafting.took_s)
            return known
        known = session.drafting.failed(event, len(session.context), now)
        if known:
            first = event.reason not in self._warned  # a drafter that is wrong every round must not fill the log
            self._warned.add(event.reason)
            level = logging.WARNING if first else logging.DEBUG
            log.log(level, "session %d: drafter: %s: %s", event.session, event.reason, event.text)
        return known

    def goodbye(self, session: Session, *, complete: bool) -> None:
        """The session ends. A complete reply is told to its end first, to a drafter that learns."""
        session.drafting.ended()
        learns = complete and self._learn and session.request.teaches
        if not session.drafting.told:
            lesson = session.drafting.lesson(session.id, session.context, self._stops(session)) if learns else None
            if lesson is not None and session.request.wish.budget:
                self._goodbyes.extend(lesson)
            return
        if learns:
            last = session.drafting.ending(session.id, session.context)
            if last is not None:
                self._goodbyes.append(last)
        self._goodbyes.append(Close(session.id, session.drafting.epoch))
