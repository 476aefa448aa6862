"""Runs a command and ends every process that descends from it, whatever happens to us.

    python -m paceline.cli.keeper COMMAND...

The keeper lives as long as its standard input stays open and the command runs. When the process that holds the other
end closes it, is stopped, or is killed outright, the keeper ends the command and everything the command started,
processes that have left its session or lost their parent included. It imports nothing heavy, so that it is in place
before there is anything to end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

from paceline.cli.processes import adopt_orphans, end_descendants

CLEAN_END_S = 3.0  # for the command to end by itself
GRACE_S = 1.0  # between SIGTERM and SIGKILL for what it left
POLL_S = 0.2


def main(command: list[str]) -> int:
    """Keeps `command`. Returns its exit code, 0 if it was ended because our input closed, 1 if something is left."""
    adopt_orphans()
    stopping, wake = os.pipe()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(wake, b"."))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process at the other end decides
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    while child.poll() is None:
        ready, _, _ = select.select([0, stopping], [], [], POLL_S)
        if stopping in ready or (0 in ready and not os.read(0, 4096)):
            break
    code = child.returncode or 0
    if child.stdin is not None:
        child.stdin.close()  # tells the command to end by itself
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(CLEAN_END_S)
    left = end_descendants(os.getpid(), grace_s=GRACE_S)
    if left:
        print(f"processes left running: {left}", file=sys.stderr, flush=True)
    return 1 if left else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
