"""Ranges of a study's options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import InvalidField

Ranges = Mapping[str, tuple[float, float]]  # least and most, by the option's name among parsed arguments


def check_ranges(args: argparse.Namespace, ranges: Ranges) -> None:
    """Raises InvalidField for the first option out of its range; of a list, every number counts."""
    for name, (least, most) in ranges.items():
        given = getattr(args, name)
        for value in given if isinstance(given, list) else [given]:
            if not least <= value <= most:
                raise InvalidField("--" + name.replace("_", "-"), value, f"{least} to {most}")


def check_out(out: Path) -> None:
    """Raises InvalidField unless the folder can be written, or made; makes nothing."""
    there = next(each for each in (out, *out.absolute().parents) if each.exists())
    if not there.is_dir():
        raise InvalidField("--out", str(out), "a folder that can be written", f"{there} is no folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidField("--out", str(out), "a folder that can be written", f"{there} cannot.")
