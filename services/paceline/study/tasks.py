"""Small tasks with answers that can be checked, within reach of a chat model of 135 million parameters."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo")
CITIES = ("Oslo", "Lisbon", "Prague", "Dublin", "Vienna", "Athens", "Madrid", "Warsaw")
JOBS = ("baker", "nurse", "pilot", "teacher", "plumber", "farmer", "lawyer", "singer")
COLOURS = ("red", "green", "blue", "yellow", "black", "white", "purple", "orange")
ANIMALS = ("dog", "cat", "horse", "goat", "duck", "sheep", "rabbit", "cow")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its answer."""

    kind: str
    prompt: str
    answer: str
    wrong: tuple[str, ...] = ()  # words that must not come before the answer

    def solved(self, reply: str) -> bool:
        """True if the answer stands in the reply as whole words, and no wrong one before it."""
        words = _words(reply)
        at = _find(words, _words(self.answer))
        return at is not None and not any(
            (found := _find(words, _words(each))) is not None and found < at for each in self.wrong
        )


def tasks(per_kind: int, seed: int) -> list[Task]:
    """`per_kind` tasks of each kind, the same for the same seed."""
    rng = random.Random(seed)
    made: list[Task] = []
    for _ in range(per_kind):
        (one, two), (here, there), (job, other) = (rng.sample(pool, 2) for pool in (NAMES, CITIES, JOBS))
        facts = f"{one} lives in {here} and works as a {job}. {two} lives in {there} and works as a {other}."
        colours, animal, count = rng.sample(COLOURS, 4), rng.choice(ANIMALS), rng.randint(2, 9)
        asked = rng.choice((here, there))
        line = f"{count} {animal}s, {colours[0]} and {colours[1]}, near {here}"
        made += [
            Task(
                "copy",
                f"Repeat this sentence exactly, and nothing else: The {job} saw {line}.",
                f"The {job} saw {line}",
            ),
            Task("list", f"Repeat this list exactly, and nothing else: {', '.join(colours)}", ", ".join(colours)),
            Task("place", f"{facts}\nIn which city does {one} live? Answer with the city only.", here, (there,)),
            Task("job", f"{facts}\nWhat is the job of {two}? Answer with the job only.", other, (job,)),
            Task(
                "yes or no",
                f"{facts}\nDoes {one} live in {asked}? Answer yes or no.",
                "yes" if asked == here else "no",
                ("no" if asked == here else "yes",),
            ),
            Task("digit", f"Write the number {NUMBERS[count - 1]} as a digit. Answer with the digit only.", str(count)),
        ]
    return made


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _find(words: list[str], wanted: list[str]) -> int | None:
    """Where `wanted` begins in `words`, first."""
    size = len(wanted)
    return next((at for at in range(len(words) - size + 1) if words[at : at + size] == wanted), None)
