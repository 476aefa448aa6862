"""Memory of a process."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int) -> int:
    """Proportional set size in MiB (shared pages counted once over all processes); 0 where the system does not tell."""
    path = Path(f"/proc/{pid}/smaps_rollup")
    if not path.exists():
        return 0
    lines = [line.split() for line in path.read_text().splitlines()]
    return next((int(fields[1]) // 1024 for fields in lines if fields[0] == "Pss:"), 0)
