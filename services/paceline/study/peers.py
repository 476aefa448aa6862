"""Decoding the same prompts with several systems, in turns."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from paceline.study.arrivals import Arrivals
from paceline.study.intervals import Interval, ratio_interval
from paceline.study.parts import Parts
from paceline.study.ratios import Ratio, ratio_by_prompt, turned
from paceline.study.turns import Turns


@dataclass(frozen=True, slots=True)
class Decoded:
    """A greedy reply. The time is that from the first arrival given to the last, of decoding alone."""

    tokens: tuple[int, ...]
    seconds: float
    timed: int  # tokens that came in these seconds
    rounds: int = 0  # passes in which they came, where the system tells

    @staticmethod
    def of(tokens: Sequence[int], arrivals: Arrivals) -> Decoded:
        """From the arrivals of its tokens, one a round."""
        if not arrivals:
            return Decoded(tuple(tokens), 0.0, 0)
        seconds, timed = arrivals[-1][0] - arrivals[0][0], sum(count for _, count in arrivals[1:])
        return Decoded(tuple(tokens), seconds, timed, len(arrivals) - 1)

    @staticmethod
    def kept(plain: Mapping[str, Any]) -> Decoded:
        """From plain data as `asdict` gives it and JSON reads it."""
        return Decoded(tuple(plain["tokens"]), plain["seconds"], plain["timed"], plain["rounds"])

    @property
    def per_token_s(self) -> float:
        """Seconds a token; NaN for a reply that came at once."""
        return self.seconds / self.timed if self.timed and self.seconds > 0 else math.nan


@dataclass(frozen=True, slots=True)
class System:
    """Something that decodes."""

    name: str
    dtype: str  # format of its weights
    decode: Callable[[Sequence[int]], Awaitable[Decoded]]  # a reply to a prompt, from its tokens

    @property
    def key(self) -> str:
        """Name and format."""
        return f"{self.name}, {self.dtype}"


@dataclass(frozen=True, slots=True)
class Times:
    """All replies of one system: of repeat r and prompt p at r * prompts + p."""

    replies: Sequence[Decoded]
    prompts: int

    @property
    def first(self) -> Sequence[Decoded]:
        """Replies of the first repeat, by prompt."""
        return self.replies[: self.prompts]

    def rate(self) -> Interval:
        """Tokens a second, with the interval over prompts."""
        timed, seconds = [0.0] * self.prompts, [0.0] * self.prompts
        for number, reply in enumerate(self.replies):
            timed[number % self.prompts] += reply.timed
            seconds[number % self.prompts] += reply.seconds
        return ratio_interval(timed, seconds)

    def over(self, base: Times) -> tuple[Ratio, Ratio | None] | None:
        """How many times as fast as `base`, as `ratio_by_prompt` has it.

        None if fewer than two pairs of replies can be compared.
        """
        pairs = [
            (ours.per_token_s, theirs.per_token_s, number % self.prompts)
            for number, (ours, theirs) in enumerate(zip(self.replies, base.replies, strict=True))
            if math.isfinite(ours.per_token_s) and math.isfinite(theirs.per_token_s)
        ]
        if len(pairs) < 2:
            return None
        ours_s, base_s, prompt_of = (list(each) for each in zip(*pairs, strict=True))
        return ratio_by_prompt(ours_s, base_s, prompt_of)


def turn_keys(prompts: int, repeats: int) -> list[str]:
    """Keys of the parts in which `decode_all` keeps its turns, in their order."""
    return [f"{repeat}-{number}" for repeat in range(repeats) for number in range(prompts)]


async def decode_all(
    systems: Sequence[System],
    prompts: Sequence[Sequence[int]],
    repeats: int,
    parts: Parts,
    progress: Callable[[str], None],
) -> Mapping[str, Times]:
    """Every system decodes every prompt in every repeat, system after system, in an order that turns with each prompt.

    A turn, all systems on one prompt, is kept in `parts`, and not decoded if it is there. If one is to be decoded, the
    first prompt is decoded once by each system beforehand, to warm it up.
    """
    keys = turn_keys(len(prompts), repeats)
    turns = Turns(parts, keys)
    for system in systems if turns.missing else ():
        progress(f"warming up {system.key}")
        await system.decode(prompts[0])
    for turn, key in enumerate(keys):
        repeat, number = divmod(turn, len(prompts))
        where = turns.told(f"repeat {repeat + 1} of {repeats}, prompt {number + 1} of {len(prompts)}")
        await turns.take(key, partial(_decode_turn, turned(systems, turn), prompts[number], where, progress))
    return {
        system.key: Times([Decoded.kept(part[system.key]) for part in turns.all()], len(prompts)) for system in systems
    }


async def _decode_turn(
    systems: Sequence[System], prompt: Sequence[int], where: str, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Replies by the keys of their systems, as plain data."""
    replies = {}
    for system in systems:
        progress(f"{where}: {system.key}")
        replies[system.key] = asdict(await system.decode(prompt))
    return replies
