"""What a study leaves behind: a JSON file, a Markdown table, and the same table on the terminal."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def machine() -> dict[str, Any]:
    """The machine and the versions a figure was measured with."""
    import torch

    model = platform.processor() or "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    packages = ("torch", "transformers", "ray", "grpcio", "paceline")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "gpu": device,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "torch_threads": torch.get_num_threads(),
    }


def timed_on() -> dict[str, Any]:
    """What kept times depend on besides a study's settings: the machine, the versions, and our own code as it is."""
    code = hashlib.sha256()
    for path in sorted(Path(str(files("paceline"))).rglob("*.py")):
        code.update(path.read_bytes())
    return {**{key: value for key, value in machine().items() if key != "torch_threads"}, "code": code.hexdigest()}


@dataclass(frozen=True, slots=True)
class Report:
    """A finished study. `rows` share their keys; `notes` are sentences printed below the table."""

    name: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    passed: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "study": self.name,
            "machine": machine(),
            "settings": dict(self.settings),
            "results": [dict(row) for row in self.rows],
            "notes": list(self.notes),
            "passed": self.passed,
            **self.extra,
        }

    def write(self, out: Path) -> None:
        """Writes NAME.json and NAME.md into `out`, creating it."""
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{self.name}.json").write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        (out / f"{self.name}.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """The table as Markdown."""
        keys = list(self.rows[0]) if self.rows else []
        lines = [f"# {self.name}", "", "| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
        lines += ["| " + " | ".join(_cell(row[key]) for key in keys) + " |" for row in self.rows]
        lines += ["", *(f"* {note}" for note in self.notes), ""]
        return "\n".join(lines)

    def show(self, as_json: bool) -> None:
        """Prints the table to stderr and, for programs, the JSON object as the last line of stdout."""
        console = Console(stderr=True)
        table = Table(title=self.name)
        keys = list(self.rows[0]) if self.rows else []
        for key in keys:
            table.add_column(key)
        for row in self.rows:
            table.add_row(*(_cell(row[key]) for key in keys))
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}")
        if as_json:
            sys.stdout.write(json.dumps(self.as_dict()) + "\n")


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with None for what is not a number, which JSON has no word for."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
