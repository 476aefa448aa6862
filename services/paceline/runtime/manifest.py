"""The record of a stored model's files, by which a damaged one is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

MANIFEST = "paceline.json"


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, facts: dict[str, object]) -> None:
    """Records every file of `folder`, and `facts` about it. Written last, so a folder that has one is complete."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps(facts | {"files": files}, indent=2) + "\n", encoding="utf-8")


def fault(folder: Path, facts: dict[str, object], *, full: bool) -> str | None:
    """What is wrong with a folder: None, "absent", or words.

    Args:
        folder: the model's folder.
        facts: what the record must say besides the files.
        full: compare the SHA-256 of every file (reads them all); otherwise sizes only.
    """
    try:
        if not folder.is_dir():
            return "absent"
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, wanted in facts.items():
            if record.get(name) != wanted:
                return f"it was made with {name} {record.get(name)!r}, this version makes it with {wanted!r}"
        entries = [(str(file), int(entry["bytes"]), str(entry["sha256"])) for file, entry in record["files"].items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or unreadable"
    for file, size, digest in entries:
        try:
            found = (folder / file).stat().st_size
            if found != size:
                return f"{file} has {found} bytes, expected {size}"
            if full and sha256(folder / file) != digest:
                return f"{file} differs from what was fetched"
        except FileNotFoundError:
            return f"{file} is missing"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror or error})"
    return None if entries else f"{MANIFEST} lists no files"
