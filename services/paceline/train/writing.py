"""The target writes: many sequences at once on the packed pass, each a prompt of its own or a given one, and a reply.

Sequence i depends on the settings and i alone, not on its company, but for ties that rounding decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.speculation.noise import Purpose, noise_key, uniform
from paceline.train.corpus import Written
from paceline.train.draws import Drawn, draw
from paceline.train.turns import UserTurn


@dataclass(frozen=True, slots=True)
class WritingSettings:
    """How sequences are written."""

    batch: int = 64  # sequences in a pass, at least 1
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)  # of replies, in turn
    prompt_temperature: float = 1.0  # of prompts the target writes itself
    prompt_tokens: int = 96  # most tokens of such a prompt
    reply_tokens: int = 192  # most tokens of a reply
    rows: int = 32  # tokens kept of a row
    seed: int = 0


@dataclass(slots=True)
class _Live:
    number: int
    sequence: int
    temperature: float
    tokens: list[int]
    prompt_length: int = 0  # 0 while the prompt is being written
    said: int = 0  # tokens of the prompt that the target wrote itself
    row_ids: list[NDArray[np.int32]] = field(default_factory=list)
    row_log_probs: list[NDArray[np.float16]] = field(default_factory=list)

    def written(self) -> Written:
        return Written(
            np.asarray(self.tokens, dtype=np.int32),
            self.prompt_length,
            self.temperature,
            np.stack(self.row_ids),
            np.stack(self.row_log_probs),
        )


class Writer:
    """Writes sequences by their numbers."""

    def __init__(
        self,
        runner: ModelRunner,
        turn: UserTurn | None,
        given: Sequence[Sequence[int]],
        settings: WritingSettings,
        openings: Sequence[Sequence[int]] = (),
    ) -> None:
        """Takes what it needs.

        Args:
            runner: the target.
            turn: what is around a user turn; needed where sequences go beyond the given prompts.
            given: prompts as tokens: the first `len(given) * len(temperatures)` sequences answer them in turn.
            settings: how to write.
            openings: tokens that prompts of its own begin with, in turn; none: it writes them whole.
        """
        self._runner, self._turn, self._given, self._settings = runner, turn, list(given), settings
        self._openings = list(openings) or [()]

    def write(self, numbers: Iterator[int], told: Callable[[int], None]) -> Iterator[tuple[int, Written]]:
        """Writes the sequences of `numbers`, and yields each when it ends; `told` hears of reply tokens as they come.

        The sequences in hand are released if the generator is closed.
        """
        live: list[_Live] = []
        try:
            while True:
                while len(live) < self._settings.batch and (number := next(numbers, None)) is not None:
                    live.append(self._begin(number))
                if not live:
                    return
                told(self._step(live))
                ended = [each for each in live if self._ended(each)]
                live = [each for each in live if each not in ended]
                for each in ended:
                    self._runner.kv.release(each.sequence)
                    yield each.number, each.written()
        finally:
            for each in live:
                self._runner.kv.release(each.sequence)

    def _begin(self, number: int) -> _Live:
        settings, answered = self._settings, len(self._given) * len(self._settings.temperatures)
        if number < answered:
            prompt = list(self._given[number % len(self._given)])
            temperature = settings.temperatures[number // len(self._given)]
            room = len(prompt) + settings.reply_tokens
            return _Live(number, self._open(room), temperature, prompt, prompt_length=len(prompt))
        assert self._turn is not None, "sequences beyond the given prompts need a turn to write"
        turn, replies = number // len(settings.temperatures), number % len(settings.temperatures)
        opening = self._openings[turn % len(self._openings)]
        begun = [*self._turn.before, *opening]
        room = len(begun) + settings.prompt_tokens + len(self._turn.behind) + settings.reply_tokens
        return _Live(number, self._open(room), settings.temperatures[replies], begun)

    def _open(self, room: int) -> int:
        return self._runner.kv.open(reserve_tokens=room)

    def _step(self, live: Sequence[_Live]) -> int:
        """One pass; returns the reply tokens it gave."""
        kv, info = self._runner.kv, self._runner.info
        segments = [
            Segment.chain(each.sequence, each.tokens[kv.length(each.sequence) :], last_row=True) for each in live
        ]
        rows = self._runner.execute(PassPlan(tuple(segments)))
        for segment in segments:
            kv.keep(segment.sequence, range(len(segment)))
        order = [rows.index[index, len(segment) - 1] for index, segment in enumerate(segments)]
        assert order == list(range(len(live))), "rows come in the order of segments"
        temperatures = [each.temperature if each.prompt_length else self._settings.prompt_temperature for each in live]
        drawn = draw(
            rows.rows[:, : info.vocab_size], temperatures, [self._uniform(each) for each in live], self._settings.rows
        )
        return sum(self._take(each, index, drawn) for index, each in enumerate(live))

    def _uniform(self, each: _Live) -> float:
        key = noise_key(self._settings.seed, each.number, len(each.tokens), Purpose.DRAW)
        return uniform(key, 0)

    def _take(self, each: _Live, index: int, drawn: Drawn) -> bool:
        """Appends a drawn token; true if it is one of the reply."""
        token = int(drawn.tokens[index])
        if each.prompt_length:
            each.tokens.append(token)
            each.row_ids.append(drawn.row_ids[index])
            each.row_log_probs.append(drawn.row_log_probs[index])
            return True
        assert self._turn is not None
        ends = token in self._runner.info.eos_token_ids
        if not ends:
            each.tokens.append(token)
            each.said += 1
        if ends or each.said >= self._settings.prompt_tokens:
            each.tokens.extend(self._turn.behind)
            each.prompt_length = len(each.tokens)
        return False

    def _ended(self, each: _Live) -> bool:
        replied = len(each.tokens) - each.prompt_length if each.prompt_length else 0
        if not replied:
            return False
        return replied >= self._settings.reply_tokens or each.tokens[-1] in self._runner.info.eos_token_ids
