"""Compute threads that wait sleep soon, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWN = "import os, paceline; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
    ids=["nothing", "turns", "a policy"],
)
def test_the_environment_has_the_last_word(given: dict[str, str], found: str) -> None:
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # this process has imported the package
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    shown = subprocess.run(
        [sys.executable, "-c", SHOWN], env=environment | given, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == found


def test_no_module_of_the_package_loads_torch_before_that() -> None:
    """OpenMP reads it once, when torch is loaded."""
    code = "import sys, paceline; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
