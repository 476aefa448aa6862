"""Looking at a stack from outside: its processes by what they are, and whether they are gone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from paceline.cli.processes import descendants


def command_line(pid: int) -> str:
    """The command line of a process, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def replicas(root: int, deployment: str) -> list[int]:
    """Processes below `root` that run a replica of a deployment."""
    return [pid for pid in descendants(root) if f"ServeReplica:paceline:{deployment}" in command_line(pid)]


def pool_of(pid: int) -> str:
    """Pool of the Ray node that a replica's process belongs to: its raylet's label."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    parent = int(stat.rpartition(")")[2].split()[1])
    found = re.search(r'--labels=\{"paceline.dev/pool": "([^"]+)"\}', command_line(parent))
    assert found is not None, f"the parent of {pid} is no raylet: {command_line(parent)[:80]}"
    return found[1]


def wait_gone(pids: set[int], patience_s: float = 20.0) -> set[int]:
    """Waits until none of `pids` runs; returns those that still do after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while left := {pid for pid in pids if command_line(pid)}:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.1)
    return set()


def alive(pid: int) -> bool:
    """Whether a process runs."""
    return os.path.exists(f"/proc/{pid}") and bool(command_line(pid))
