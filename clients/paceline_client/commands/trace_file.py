"""A file of rounds: one JSON object a line, the last one of each reply its end."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paceline_client.commands.summary import finish_json
from paceline_client.errors import ClientError
from paceline_client.replies import Delta, Event


class TraceFile:
    """Written line by line, so that a reply that breaks off leaves what came of it."""

    def __init__(self, path: str) -> None:
        """Creates the file, or empties it. Raises ClientError, naming path and reason, if it cannot be written."""
        self._path = path
        try:
            self._file = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise self._fault(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as fault:  # a full disk says so again; the first time counts
            if error is None:
                raise self._fault(fault) from None

    def write(self, event: Event) -> None:
        """Adds a line for each round of a Delta, or the last one of a reply. `choice` is the reply's index."""
        if isinstance(event, Delta):
            for trace in event.rounds:
                self._line({"type": "round", "choice": event.index, **asdict(trace)})
        else:
            self._line({"type": "finish", "choice": event.index, **finish_json(event)})

    def _line(self, content: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(_finite(content), ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise self._fault(error) from None

    def _fault(self, error: OSError | ValueError) -> ClientError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ClientError(f"--trace: cannot write {self._path!r}: {reason}; name a file in a folder that is writable")


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON has not, such as the logarithm of 0."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
