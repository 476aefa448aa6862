"""Decoding the same prompts with several systems, in turns."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.study.bare import Arrivals
from paceline.study.intervals import Interval, ratio_interval
from paceline.study.ratios import Ratio, ratio_of, turned


@dataclass(frozen=True, slots=True)
class Decoded:
    """A greedy reply. Prefill is left out: the time is that from the first arrival to the last."""

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

    def over(self, base: Times) -> tuple[Ratio, Ratio] | None:
        """How many times as fast as `base`: over these prompts as they are, and over them as draws of all prompts.

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
        by_pair = ratio_of(ours_s, base_s)
        twice = len(pairs) > len(set(prompt_of))
        return (ratio_of(ours_s, base_s, prompt_of) if twice else by_pair), by_pair


async def decode_all(
    systems: Sequence[System], prompts: Sequence[Sequence[int]], repeats: int, progress: Callable[[str], None]
) -> Mapping[str, Times]:
    """Every system decodes every prompt in every repeat, system after system, in an order that turns with each prompt.

    The first prompt is decoded once by each beforehand, to warm it up.
    """
    found: dict[str, list[Decoded]] = {system.key: [] for system in systems}
    for system in systems:
        progress(f"warming up {system.key}")
        await system.decode(prompts[0])
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            turn = repeat * len(prompts) + number
            for system in turned(systems, turn):
                progress(f"repeat {repeat + 1} of {repeats}, prompt {number + 1} of {len(prompts)}: {system.key}")
                found[system.key].append(await system.decode(prompt))
    return {key: Times(replies, len(prompts)) for key, replies in found.items()}
