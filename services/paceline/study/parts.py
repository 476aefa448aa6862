"""Finished parts of a long study, kept on the disk so that a run that was broken off goes on where it ended."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Progress = Callable[[str], None]


class Parts:
    """Parts of one study below one folder: `parts/STUDY/KEY.json`.

    A part counts only if it was computed with the same settings, of which the file holds a digest.
    """

    def __init__(self, out: Path, study: str, settings: Mapping[str, Any]) -> None:
        """Touches nothing yet. `settings` is everything that a part's outcome depends on, as plain data."""
        self._folder = out / "parts" / study
        text = json.dumps(settings, sort_keys=True, default=str)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def get(self, key: str) -> Any | None:
        """A finished part; None if there is none, or one of other settings, or one that cannot be read."""
        try:
            held = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return held.get("part") if isinstance(held, dict) and held.get("settings") == self.digest else None

    def put(self, key: str, part: Any) -> None:
        """Keeps a part; a file is either whole or not there."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps({"settings": self.digest, "part": part}), encoding="utf-8")
        os.replace(scratch, path)

    def made(self, key: str, make: Callable[[], Any]) -> Any:
        """The part as kept, or made now. It is plain data and comes back as JSON reads it."""
        held = self.get(key)
        if held is None:
            self.put(key, make())
            held = self.get(key)
        return held

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
