"""Replies that come side by side, one after the other."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from paceline_client.replies import Event, Finish


def in_order(events: Iterable[Event]) -> Iterator[Event]:
    """The events of reply 0 as they come, then those of reply 1, and so on; what comes too early waits."""
    waiting: defaultdict[int, deque[Event]] = defaultdict(deque)
    current = 0
    for event in events:
        waiting[event.index].append(event)
        while waiting[current]:
            first = waiting[current].popleft()
            yield first
            if isinstance(first, Finish):
                current += 1
