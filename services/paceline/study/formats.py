"""`--dtype` of studies that compare number formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from paceline.errors import InvalidField, PacelineError

FORMATS = ("float32", "bfloat16", "int8", "int4")
CHOICES = ("auto", *FORMATS)
LOW_BIT = ("int8", "int4")  # of weights; transformers decodes them in float32 beside
Loaded = TypeVar("Loaded")


def format_list(text: str) -> tuple[str, ...]:
    """Formats from "float32,int8", in that order. Raises InvalidField for an unknown one, or one named twice."""
    found = tuple(part.strip() for part in text.split(","))
    wrong = next((name for name in found if name not in FORMATS), None)
    if wrong is not None or len(set(found)) < len(found):
        raise InvalidField("--dtype", text if wrong is None else wrong, f"some of {','.join(FORMATS)}, each once")
    return found


def number_list(flag: str, text: str, most: int) -> tuple[int, ...]:
    """Numbers from "1,2,4", in that order. Raises InvalidField unless each is 1 to `most`, and none twice."""
    parts = [part.strip() for part in text.split(",")]
    found = tuple(int(part) for part in parts if part.isdecimal())
    if len(found) < len(parts) or len(set(found)) < len(found) or not all(1 <= each <= most for each in found):
        raise InvalidField(flag, text, f"numbers from 1 to {most} with commas between them, each once")
    return found


def bare_format(dtype: str) -> str:
    """The format in which transformers decodes beside ours."""
    return "float32" if dtype in LOW_BIT else dtype


def with_formats(dtypes: Sequence[str], load: Callable[[str], Loaded]) -> tuple[Mapping[str, Loaded], list[str]]:
    """What `load` gives for each format, and a sentence for each one that this machine or version does not do.

    Raises what `load` raised if it did so for every format.
    """
    found: dict[str, Loaded] = {}
    skipped: list[str] = []
    for number, dtype in enumerate(dtypes, start=1):
        try:
            found[dtype] = load(dtype)
        except PacelineError as error:
            if number == len(dtypes) and not found:
                raise
            skipped.append(f"{dtype} is skipped: {error}")
    return found, skipped
