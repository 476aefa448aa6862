"""The README's shell commands."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def commands() -> list[str]:
    """Every line of the README's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]
