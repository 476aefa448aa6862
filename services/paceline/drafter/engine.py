"""The drafter's engine: sessions of many streams, one compute thread, everything that moved in one batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.drafter.messages import Advance, Close, Fault, Open, Reply, RowTold, Update
from paceline.drafter.proposer import ContextTooLong, NoSlot, Proposer, UnknownTokens, Want

__all__ = ["Advance", "Close", "DrafterEngine", "Fault", "Open", "Reply", "Sink", "Update"]

logger = logging.getLogger(__name__)

Sink = Callable[[list[Reply]], None]  # called from the compute thread

_FAILED = "the proposer failed; the drafter's log has the details"
_FAULTS: dict[type[Exception], Fault] = {
    ContextTooLong: Fault.CONTEXT_LIMIT,
    NoSlot: Fault.OVERLOADED,
    UnknownTokens: Fault.TOKENIZER_MISMATCH,
}


@dataclass(slots=True)
class _Session:
    key: int  # the proposer's name for it, never used again
    epoch: int
    length: int
    vocab_size: int  # ids from here on break the protocol
    budget: int = 0  # nodes of the tree that is wanted; 0 if none is
    unread: bool = True  # the proposer has context to read, or has not been asked since it grew


_Named = tuple[tuple[int, int], _Session]  # ((stream, session), state)


class DrafterEngine:
    """Runs a proposer in its own thread. `submit` and `end_stream` may be called from any thread."""

    def __init__(
        self,
        proposer: Proposer,
        max_sessions: int,
        max_budget: int,
        clock: Callable[[], float] = time.monotonic,
        upkeep: Callable[[], bool] | None = None,
    ) -> None:
        """`max_sessions` over all streams; trees have at most `max_budget` nodes.

        `upkeep` does a millisecond of work that nobody waits for, and says whether there is more. The thread calls it
        while it has nothing else to do.
        """
        self._proposer, self._max_sessions, self._max_budget, self._clock = proposer, max_sessions, max_budget, clock
        self._sessions: dict[tuple[int, int], _Session] = {}  # (stream, session); compute thread only
        self._next_key = 1
        self._wake = threading.Condition()
        self._inbox: list[tuple[int, Sequence[Update] | None, Sink | None]] = []  # None ends a stream
        self._stopping = False
        self._busy_since: float | None = None
        self._sinks: dict[int, Sink] = {}  # where replies of each stream go; compute thread only
        self._upkeep = upkeep
        self._idle_work = upkeep is not None  # whether the upkeep has more to do; compute thread only
        self._unfinished = False  # whether there is work without another update; compute thread only
        self._thread = threading.Thread(target=self._run, name="paceline-drafter", daemon=True)

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread after the batch in hand."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def submit(self, stream: int, updates: Sequence[Update], sink: Sink) -> None:
        """Queues the updates of one frame; their replies go to `sink`, batched."""
        self._put((stream, updates, sink))

    def end_stream(self, stream: int) -> None:
        """Closes every session of a stream."""
        self._put((stream, None, None))

    def stalled_s(self) -> float:
        """Seconds the batch in hand has taken so far; infinite if the thread is dead."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopping:
            return float("inf")
        since = self._busy_since
        return 0.0 if since is None else self._clock() - since

    def _put(self, item: tuple[int, Sequence[Update] | None, Sink | None]) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._busy_since = None
                self._wake.wait_for(lambda: self._inbox or self._stopping or self._unfinished or self._idle_work)
                if self._stopping:
                    return
                batch, self._inbox = self._inbox, []
                self._busy_since = self._clock()
            self._process(batch)
            if self._upkeep is not None and not self._unfinished:
                self._idle_work = self._keep_up(self._upkeep)

    def _keep_up(self, upkeep: Callable[[], bool]) -> bool:
        try:
            return upkeep()
        except Exception:
            logger.exception("upkeep failed; it is tried again after the next frame")
            return False

    def _process(self, batch: Sequence[tuple[int, Sequence[Update] | None, Sink | None]]) -> None:
        """Applies a batch in order, then drafts once for every session that wants a tree: the newest advance wins.

        While none wants one, the proposer reads, a part at a time, what sessions have been told.
        """
        replies: dict[int, list[Reply]] = {}
        for stream, updates, sink in batch:
            if updates is None or sink is None:
                self._end(stream)
                continue
            self._sinks[stream] = sink
            for update in updates:
                fault = self._apply(stream, update)
                if fault is not None:
                    replies.setdefault(stream, []).append(fault)
        moved = [(name, held) for name, held in self._sessions.items() if held.budget or held.unread]
        for stream, reply in self._draft([each for each in moved if each[1].budget] or moved):
            replies.setdefault(stream, []).append(reply)
        self._unfinished = any(held.budget or held.unread for _, held in moved)
        for stream, found in replies.items():
            self._deliver(stream, found)

    def _apply(self, stream: int, update: Update) -> Reply | None:
        held = self._sessions.get((stream, update.session))
        if held is not None and update.epoch < held.epoch:
            return None  # of an older incarnation
        try:
            if isinstance(update, Open):
                return self._open(stream, update)
            if held is not None and update.epoch > held.epoch:
                self._close(stream, update.session)  # its successor was refused, but it has ended all the same
                held = None
            if isinstance(update, Close):
                self._close(stream, update.session)
                return None
            if held is None:
                return Reply(update.session, update.epoch, fault=Fault.PROTOCOL, message="the session is not open")
            if isinstance(update, RowTold):
                return self._row_told(stream, held, update)
            return self._advance(stream, held, update.base_length, update.tokens, update)
        except Exception as error:
            for kind, fault in _FAULTS.items():
                if isinstance(error, kind):
                    return self._failed(stream, update, fault, str(error))
            logger.exception("the proposer failed on session %d", update.session)
            return self._failed(stream, update, Fault.INTERNAL, _FAILED)

    def _open(self, stream: int, update: Open) -> Reply | None:
        self._close(stream, update.session)
        if len(self._sessions) >= self._max_sessions:
            raise NoSlot(f"{len(self._sessions)} sessions are open, allowed: {self._max_sessions}")
        own = self._proposer.tokenizer_fingerprint
        if own and own != update.tokenizer_fingerprint:
            message = f"tokenizer {own[:12]} here, {update.tokenizer_fingerprint[:12]} at the target"
            return Reply(update.session, update.epoch, fault=Fault.TOKENIZER_MISMATCH, message=message)
        key, self._next_key = self._next_key, self._next_key + 1
        self._proposer.open(key, update.context, update.prompt_length, update.options)
        self._sessions[stream, update.session] = _Session(
            key, update.epoch, len(update.context), update.options.vocab_size, min(update.budget, self._max_budget)
        )
        return None

    def _row_told(self, stream: int, held: _Session, update: RowTold) -> Reply | None:
        """The row is kept for the context it belongs to; a drawn token narrows what is grown to the part below it."""
        if update.row is not None and update.base_length == held.length:
            if int(update.row.token_ids[-1]) >= held.vocab_size:
                message = f"row with token {int(update.row.token_ids[-1])}, allowed: 0 to {held.vocab_size - 1}"
                return self._failed(stream, update, Fault.PROTOCOL, message)
            self._proposer.row(held.key, update.row)
        if update.drawn is None:
            return None
        return self._advance(stream, held, update.base_length, [update.drawn], update)

    def _advance(
        self, stream: int, held: _Session, base_length: int, tokens: Sequence[int], update: Advance | RowTold
    ) -> Reply | None:
        if base_length != held.length:
            message = f"base length {base_length}, the session has {held.length} tokens"
            return self._failed(stream, update, Fault.PROTOCOL, message)
        if len(tokens):
            if not 0 <= min(tokens) <= max(tokens) < held.vocab_size:
                message = f"tokens {list(tokens)[:16]}, allowed: 0 to {held.vocab_size - 1}"
                return self._failed(stream, update, Fault.PROTOCOL, message)
            self._proposer.advance(held.key, tokens)
            held.length += len(tokens)
            held.unread = True
        held.budget = min(update.budget, self._max_budget)
        return None

    def _draft(self, asking: Sequence[_Named]) -> list[tuple[int, Reply]]:
        """Trees of sessions that want one; those with a budget of 0 are only read, and answered if that fails."""
        if not asking:
            return []
        try:
            trees = self._proposer.propose([Want(held.key, held.budget) for _, held in asking])
        except Exception:
            logger.exception("the proposer failed on %d sessions", len(asking))
            if len(asking) > 1:  # find the one that fails, so that the others are served
                return [pair for each in asking for pair in self._draft([each])]
            (stream, session), held = asking[0]
            self._close(stream, session)
            held.budget, held.unread = 0, False
            return [(stream, Reply(session, held.epoch, fault=Fault.INTERNAL, message=_FAILED))]
        replies = []
        for ((stream, session), held), grown in zip(asking, trees, strict=True):
            if grown is None:
                continue  # a part is done; the next batch goes on
            if held.budget and not grown.soon and (len(grown.tree) or not grown.growing):
                replies.append((stream, Reply(session, held.epoch, held.length, grown.tree, grown.growing)))
            if not grown.growing:
                held.budget, held.unread = 0, grown.behind
        return replies

    def _deliver(self, stream: int, replies: list[Reply]) -> None:
        sink = self._sinks.get(stream)
        if sink is None:
            return  # it has ended
        try:
            sink(replies)
        except Exception:
            logger.exception("replies of stream %d cannot be delivered", stream)

    def _failed(self, stream: int, update: Update, kind: Fault, message: str) -> Reply:
        self._close(stream, update.session)
        return Reply(update.session, update.epoch, fault=kind, message=message)

    def _close(self, stream: int, session: int) -> None:
        held = self._sessions.pop((stream, session), None)
        if held is None:
            return
        try:
            self._proposer.close(held.key)
        except Exception:
            logger.exception("the proposer failed to close session %d", session)

    def _end(self, stream: int) -> None:
        self._sinks.pop(stream, None)
        for owner, session in [name for name in self._sessions if name[0] == stream]:
            self._close(owner, session)
