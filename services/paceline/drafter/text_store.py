"""Text served by this replica, as n-grams in bounded memory, shared by its sessions."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.ngrams import LONGEST, NGrams, context_keys, tenant_start

LEARN_TOKENS = 64  # learned in one call, about 1 ms: a long reply, or a file of them, holds nobody up
MB = 10**6


class Texts(NamedTuple):
    """Replies, one behind the other."""

    tokens: NDArray[np.int32]  # [sum of lengths] int32
    lengths: NDArray[np.int32]  # [texts] int32, each at least 1


@dataclass(slots=True, eq=False)
class _Generation:
    """What was learned between two turns of the store."""

    grams: NGrams = field(default_factory=NGrams)
    tokens: array[int] = field(default_factory=lambda: array("i"))  # of texts that may be saved
    lengths: array[int] = field(default_factory=lambda: array("i"))

    @property
    def text_bytes(self) -> int:
        return self.tokens.itemsize * (len(self.tokens) * 9 // 8 + len(self.lengths) * 9 // 8)  # as arrays grow


@dataclass(slots=True, eq=False)
class _Lesson:
    """A reply on its way into the store."""

    start: int  # of the keys of its tenant
    kept: bool  # whether its text may be saved
    tokens: NDArray[np.int32]  # [prompt and reply] int32
    learned: int  # tokens that are learned, or need not be
    in_generation: _Generation | None = None  # whose last text is the part of it that is learned


class TextStore:
    """N-grams of replies. The least recently learned go first.

    Memory is bounded by two generations of half the capacity: the younger learns; once it is full the older is dropped
    as a whole and a new one begins. Between half the capacity and all of it is held. Nothing is moved or stamped on a
    lookup, which stays two dictionary probes for each length of context, and what is learned again is young again.

    `add`, `learn_part` and lookups are of one thread; `texts` may be called from another.
    """

    def __init__(self, capacity_bytes: int, *, keep_texts: bool = False) -> None:
        """`capacity_bytes` 0 holds nothing. `keep_texts` keeps the default tenant's replies as text, to be saved."""
        self.capacity = capacity_bytes
        self._keep_texts = keep_texts
        self._young, self._old = _Generation(), _Generation()
        self._lessons: deque[_Lesson] = deque()
        self._lock = threading.Lock()  # over generations and lessons
        self.revision = 0  # replies added that may be saved

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return self._young.grams.tokens + self._old.grams.tokens

    @property
    def bytes(self) -> int:
        """Estimated memory of what is held; at most the capacity."""
        return sum(each.grams.bytes + each.text_bytes for each in (self._young, self._old))

    @property
    def waiting(self) -> bool:
        """True if `learn_part` has something to do."""
        return bool(self._lessons)

    def add(self, tokens: Sequence[int], prompt_length: int, tenant: str = "") -> None:
        """Queues a reply to be learned. `tokens` is prompt and reply; of the prompt nothing is ever saved."""
        if self.capacity == 0 or len(tokens) <= prompt_length:
            return
        kept = self._keep_texts and not tenant
        lesson = _Lesson(tenant_start(tenant), kept, np.asarray(tokens, dtype=np.int32), prompt_length)
        with self._lock:
            self._lessons.append(lesson)
            self.revision += kept

    def preload(self, texts: Texts, *, saved: bool = True) -> None:
        """Queues saved replies, oldest first, as the default tenant's. They are no change that needs saving.

        `saved`: whether they are among what is saved again.
        """
        if self.capacity == 0:
            return
        ends = np.cumsum(texts.lengths)
        with self._lock:
            for start, end in zip((ends - texts.lengths).tolist(), ends.tolist(), strict=True):
                self._lessons.append(_Lesson(tenant_start(""), self._keep_texts and saved, texts.tokens[start:end], 0))

    def learn_part(self, room: int = LEARN_TOKENS) -> bool:
        """Learns up to `room` tokens of what is queued. True if there is more."""
        with self._lock:
            while self._lessons and room:
                lesson = self._lessons[0]
                end = min(lesson.learned + room, len(lesson.tokens))
                room -= end - lesson.learned
                self._learn(lesson, end)
                if end == len(lesson.tokens):
                    self._lessons.popleft()
            return bool(self._lessons)

    def generations(self) -> list[NGrams]:
        """The generations that hold anything, for looking up, the younger first."""
        return [each.grams for each in (self._young, self._old) if each.grams.tokens]

    def texts(self) -> Texts:
        """Replies of the default tenant that are held or queued, oldest first; empty unless texts are kept."""
        with self._lock:
            tokens: list[Iterable[int]] = [self._old.tokens, self._young.tokens]
            lengths = [*self._old.lengths, *self._young.lengths]
            for lesson in self._lessons:
                if not lesson.kept:
                    continue
                rest = lesson.tokens[lesson.learned :]
                tokens.append(rest)
                if lesson.in_generation is self._young:  # only the first in the queue has begun
                    lengths[-1] += len(rest)
                else:
                    lengths.append(len(rest))
            parts = [np.array(part, dtype=np.int32) for part in tokens]
        return Texts(np.concatenate(parts), np.array(lengths, dtype=np.int32))

    def _learn(self, lesson: _Lesson, end: int) -> None:
        first = max(0, lesson.learned - LONGEST)
        text = lesson.tokens[first:end].tolist()
        for index in range(lesson.learned - first, len(text)):
            if self._young.grams.bytes_ahead + self._young.text_bytes > self.capacity // 2 and self._young.grams.tokens:
                self._young, self._old = _Generation(), self._young
            keys = context_keys(text[max(0, index - LONGEST) : index], lesson.start)
            self._young.grams.learn(keys, text[index])
            if lesson.kept:
                self._keep(lesson, text[index])
        lesson.learned = end

    def _keep(self, lesson: _Lesson, token: int) -> None:
        young = self._young
        if lesson.in_generation is not young:  # its first token, or the first after a turn
            lesson.in_generation = young
            young.lengths.append(0)
        young.tokens.append(token)
        young.lengths[-1] += 1
