"""Memory of a process."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int) -> int:
    """Proportional set size in MiB (shared pages counted once over all processes); 0 where the system does not tell."""
    return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def own_mib() -> int:
    """Resident MiB of this process, shared pages in full; 0 where the system does not tell."""
    return _field(Path("/proc/self/status"), "VmRSS:")


def peak_mib() -> int:
    """Most resident MiB of this process so far; 0 where the system does not tell.

    From /proc: what `getrusage` says of a spawned process starts at its parent's peak.
    """
    return _field(Path("/proc/self/status"), "VmHWM:")


def _field(path: Path, name: str) -> int:
    if not path.exists():
        return 0
    lines = [line.split() for line in path.read_text().splitlines()]
    return next((int(fields[1]) // 1024 for fields in lines if fields and fields[0] == name), 0)
