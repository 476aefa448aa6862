"""Process trees: who descends from whom, and ending every descendant.

A local Ray cluster is a tree of some twenty processes, several of which start others in new sessions. Names and process
groups would reach processes of other clusters on the machine; descent cannot.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> bool:
    """Makes this process the parent of every descendant whose own parent dies. Returns False where that is unknown.

    Only Linux has it. Elsewhere an orphan goes to process 1, and `descendants` finds what is still linked.
    """
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def descendants(root: int) -> list[int]:
    """Live processes below `root`, nearest first. Processes that have ended and wait to be reaped are left out."""
    children = defaultdict(list)
    for pid, parent in _parents():
        children[parent].append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.pop(queue.pop(0), [])
        found += below
        queue += below
    return found


def end_descendants(root: int, *, grace_s: float, patience_s: float = 10.0) -> list[int]:
    """Ends every process below `root`: SIGTERM, then SIGKILL after `grace_s`. Returns what outlived `patience_s`.

    Looks again until nothing is left, since a process may start another one while it is being ended. Reaps direct
    children, so it is for a process that has no other use of its children's exit codes.
    """
    known = set(descendants(root))
    _signal(known, signal.SIGTERM)
    started = time.monotonic()
    while True:
        _reap()
        # Those that are no longer linked to `root` (no adoption on this system) are followed by their number.
        alive = set(descendants(root)) | {pid for pid in known if _alive(pid)}
        known |= alive
        waited = time.monotonic() - started
        if not alive or waited > grace_s + patience_s:
            return sorted(alive)
        if waited > grace_s:
            _signal(alive, signal.SIGKILL)
        time.sleep(0.05)


def _parents() -> list[tuple[int, int]]:
    """(pid, parent pid) of every live process that can be seen."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listing.stdout.splitlines()]
        return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [(pid, stat[1]) for pid in pids if (stat := _stat(pid)) is not None]


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, parent pid) from /proc, None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # the name before it may hold spaces and brackets
    return None if state in "ZX" else (state, int(parent))


def _alive(pid: int) -> bool:
    if Path("/proc/self/stat").exists():
        return _stat(pid) is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
