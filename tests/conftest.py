"""Shared fixtures, and how `make test` divides the suite. Heavier fixtures live beside the tests that use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _take_own_cores() -> None:
    """Under `pytest -n` each worker, and all it starts, computes on cores of its own.

    Threads of two workers that wait for one another on the same cores make real models several times slower.
    """
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if worker and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: int(count)]
        if own:
            os.sched_setaffinity(0, own)


_take_own_cores()  # before anything asks how many there are


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT
