"""Case files of the law study: JSON with `cases`, each an object whose keys tell its kind. Everything is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField

_SUM_SLACK = 1e-9  # of a row's sum from 1
_HUGE = 1e300


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a file. Its readers raise InvalidField naming file, case and key."""

    file: Path
    index: int  # in the file's `cases`
    values: dict[str, Any]

    def fault(self, key: str, allowed: str, got: object = None) -> InvalidField:
        """An error of this case; `got` unless given is the key's value."""
        value = self.values.get(key, "nothing") if got is None else got
        return InvalidField(f"{self.file}: case {self.index + 1} (cases[{self.index}]): {key}", value, allowed)

    def integer(self, key: str, low: int, high: int | None = None) -> int:
        """A whole number from `low` to `high`."""
        value = self.values[key]
        if not is_integer(value) or value < low or (high is not None and value > high):
            raise self.fault(key, f"a whole number, {low} or more" if high is None else f"{low} to {high}")
        return int(value)

    def fraction(self, key: str) -> float:
        """A number from 0 to 1."""
        value = self.values[key]
        if not (is_number(value) and 0.0 <= value <= 1.0):
            raise self.fault(key, "0 to 1")
        return float(value)

    def probs(self, key: str, size: int | None = None) -> NDArray[np.float64]:
        """[size] probabilities by token id, any number of them unless `size` is given."""
        return self._probs(key, key, self.values[key], size)

    def table(self, key: str, size: int | None = None) -> list[NDArray[np.float64]]:
        """A row of probabilities for each last token."""
        rows = self.values[key]
        if not isinstance(rows, list) or not rows or (size is not None and len(rows) != size):
            raise self.fault(key, "a list of rows" if size is None else f"{size} rows")
        return [self._probs(key, f"{key}[{last}]", row, len(rows)) for last, row in enumerate(rows)]

    def tokens(self, key: str, vocab_size: int) -> list[int]:
        """Different token ids."""
        values = self.values[key]
        if not isinstance(values, list) or not all(is_integer(each) and 0 <= each < vocab_size for each in values):
            raise self.fault(key, f"a list of token ids, 0 to {vocab_size - 1}")
        if len(set(values)) != len(values):
            raise self.fault(key, "token ids that differ from one another")
        return [int(each) for each in values]

    def _probs(self, key: str, name: str, values: object, size: int | None) -> NDArray[np.float64]:
        if not isinstance(values, list) or not values or not all(is_number(each) and each >= 0 for each in values):
            raise self.fault(name, "a list of probabilities", values)
        if size is not None and len(values) != size:
            raise self.fault(name, f"{size} probabilities", values)
        probs = np.asarray(values, dtype=np.float64)
        if abs(float(probs.sum()) - 1.0) > _SUM_SLACK:
            raise self.fault(name, "probabilities whose sum is 1", float(probs.sum()))
        return probs


def load_cases(file: Path) -> list[Case]:
    """The cases of a file. Raises InvalidField, naming the file, unless it holds at least one."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidField("FILE", str(file), "a file that can be read", error.strerror or "") from error
    except UnicodeDecodeError as error:
        raise InvalidField("FILE", str(file), "a text file in UTF-8") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidField("FILE", str(file), f"JSON ({error})") from error
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list) or not cases:
        raise InvalidField(f"{file}: cases", cases, 'an object with "cases", a list of at least one')
    for index, values in enumerate(cases):
        if not isinstance(values, dict):
            raise InvalidField(f"{file}: case {index + 1} (cases[{index}])", values, "an object")
    return [Case(file, index, values) for index, values in enumerate(cases)]


def is_number(value: object) -> bool:
    """True for what JSON calls a number, if float64 can hold it; Python reads NaN and Infinity too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_HUGE < value < _HUGE


def is_integer(value: object) -> bool:
    """True for a whole number without a decimal point."""
    return isinstance(value, int) and not isinstance(value, bool)
