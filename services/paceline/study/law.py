"""The implemented rules beside numbers of case files: the worst deviation of each file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.study.law_cases import Case, is_integer, is_number, load_cases
from paceline.study.law_kinds import KINDS, Found, Kind
from paceline.study.report import Report

BAR = 1e-9  # largest deviation of a number that counts as none
UNEQUAL = 1.0  # deviation of what is no number, such as a path, and differs


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one stated result is from what the rules gave."""

    size: float
    case: int  # index in the file
    key: str


def study_law(files: Sequence[Path], progress: Callable[[str], None] = lambda _: None) -> Report:
    """Compares every number of every case. Raises InvalidField for a file or case that cannot be understood.

    All files are read, and all kinds told, before the first case is computed.
    """
    known = [(file, [(case, kind_of(case)) for case in load_cases(file)]) for file in files]
    rows: list[dict[str, Any]] = []
    for file, cases in known:
        found: list[Deviation] = []
        for number, (case, kind) in enumerate(cases, start=1):
            progress(f"{file.name}: case {number} of {len(cases)}, {kind.name}")
            found += deviations(case, kind)
        worst = max(found, key=lambda each: each.size)
        rows.append(
            {
                "file": str(file),
                "cases": len(cases),
                "compared": len(found),
                "worst_deviation": worst.size,
                "case": worst.case + 1,
                "key": worst.key,
            }
        )
    passed = all(row["worst_deviation"] <= BAR for row in rows)
    notes = [f"The bar is {BAR:g}. `case` and `key` are those of the worst deviation; the first case is 1."]
    return Report("law", {"bar": BAR}, rows, notes, passed)


def run_law(args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
    """The command: a line a file on stdout, before whatever the report itself shows."""
    report = study_law(args.files, progress)
    for row in report.rows:
        where = f"case {row['case']}, {row['key']}"
        counts = f"{row['cases']} cases, {row['compared']} results"
        sys.stdout.write(f"{row['file']}: worst deviation {row['worst_deviation']:.3g} ({where}) of {counts}\n")
    return report


def kind_of(case: Case) -> Kind:
    """The kind whose keys the case has. Raises InvalidField naming a key too many or too few."""
    keys = case.values.keys()
    exact = next((kind for kind in KINDS if keys == {*kind.given, *kind.stated}), None)
    if exact is not None:
        return exact
    nearest = min(KINDS, key=lambda kind: len(keys ^ {*kind.given, *kind.stated}))
    wanted = (*nearest.given, *nearest.stated)
    if not keys & set(wanted):
        raise case.fault("keys", "those of a kind of case: " + ", ".join(kind.name for kind in KINDS), sorted(keys))
    lacking = [key for key in wanted if key not in keys]
    if lacking:
        raise case.fault(lacking[0], f"the keys of a case of kind '{nearest.name}': {', '.join(wanted)}")
    extra = next(key for key in keys if key not in wanted)
    raise case.fault(extra, f"no such key in a case of kind '{nearest.name}': {', '.join(wanted)}")


def deviations(case: Case, kind: Kind) -> list[Deviation]:
    """Of each result that the case states."""
    return [each for key, found in kind.run(case) for each in _within(case, key, case.values[key], found)]


def _within(case: Case, key: str, stated: Any, found: Found) -> Iterator[Deviation]:
    """Of each result within `stated`."""
    if isinstance(found, Mapping):
        if not isinstance(stated, dict):
            raise case.fault(key, "an object", repr(stated))
        for name in (*found, *stated):
            if name not in found or name not in stated:
                raise case.fault(f"{key}.{name}", f"the keys {', '.join(found)}", repr(stated.get(name)))
        for name, value in found.items():
            yield from _within(case, f"{key}.{name}", stated[name], value)
    elif isinstance(found, list) and found and isinstance(found[0], Mapping):
        for at, value in enumerate(found):
            yield from _within(case, f"{key}[{at}]", stated[at], value)
    else:
        yield Deviation(_size(case, key, stated, found), case.index, key)


def _size(case: Case, key: str, stated: Any, found: Found) -> float:
    """Largest absolute difference. Raises InvalidField if `stated` has not the form of `found`."""
    if isinstance(found, bool):
        fits, allowed = isinstance(stated, bool), "true or false"
    elif isinstance(found, int):
        fits, allowed = is_integer(stated), "a token id"
    elif isinstance(found, float):
        fits, allowed = is_number(stated), "a number"
    elif isinstance(found, np.ndarray):
        fits = isinstance(stated, list) and len(stated) == len(found) and all(map(is_number, stated))
        allowed = f"{len(found)} numbers"
    elif isinstance(found, frozenset):
        fits, allowed = _different_ids(stated), "different token ids"
    else:
        fits, allowed = _are_paths(stated), "paths, each a list of token ids"
    if not fits:
        raise case.fault(key, allowed, repr(stated))
    if isinstance(found, frozenset):
        return 0.0 if frozenset(stated) == found else UNEQUAL
    if isinstance(found, float | np.ndarray):
        return float(np.abs(np.asarray(stated, dtype=np.float64) - found).max())
    return 0.0 if stated == found else UNEQUAL


def _different_ids(stated: Any) -> bool:
    return isinstance(stated, list) and all(map(is_integer, stated)) and len(set(stated)) == len(stated)


def _are_paths(stated: Any) -> bool:
    return isinstance(stated, list) and all(isinstance(path, list) and all(map(is_integer, path)) for path in stated)
