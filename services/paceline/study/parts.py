"""Finished parts of a long study, kept on the disk so that a run that was broken off goes on where it ended."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Progress = Callable[[str], None]


class Parts:
    """Parts of one study below one folder: `parts/STUDY/KEY.json`.

    A part counts only if it was computed with the same settings, of which the file holds a digest. The file also names
    the run that has computed it.
    """

    def __init__(self, out: Path | None, study: str, settings: Mapping[str, Any]) -> None:
        """Touches nothing yet.

        Args:
            out: folder of the study; None keeps nothing.
            study: its name.
            settings: everything that a part's outcome depends on, as plain data.
        """
        self.folder = None if out is None else out / "parts" / study
        text = json.dumps(settings, sort_keys=True, default=str)
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._run = secrets.token_hex(8)

    def get(self, key: str) -> Any | None:
        """A finished part; None if there is none, or one of other settings, or one that cannot be read."""
        return self._held(key).get("part")

    def put(self, key: str, part: Any) -> Any:
        """Keeps a part, and returns it as JSON reads it; a file is either whole or not there."""
        text = json.dumps({"settings": self.digest, "run": self._run, "part": part})
        if self.folder is not None:
            path = self.folder / f"{key}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_suffix(".tmp")
            scratch.write_text(text, encoding="utf-8")
            os.replace(scratch, path)
        return json.loads(text)["part"]

    def made(self, key: str, make: Callable[[], Any]) -> Any:
        """The part as kept, or made now. It is plain data and comes back as JSON reads it."""
        held = self.get(key)
        return self.put(key, make()) if held is None else held

    def runs(self, keys: Iterable[str]) -> int:
        """In how many runs these parts were computed; one that is not kept counts for this run."""
        return len({self._held(key).get("run", self._run) for key in keys})

    def _held(self, key: str) -> Mapping[str, Any]:
        if self.folder is None:
            return {}
        try:
            held = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return held if isinstance(held, dict) and held.get("settings") == self.digest else {}
