"""A thread that loads leaves nothing behind that slows the compute thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.runtime.passing_thread import in_passing_thread

# In a process of its own: threads of earlier tests do not count, nor does their end.
PROGRAM = """
import asyncio, os, sys, threading
import torch
from paceline.runtime.passing_thread import in_passing_thread

torch.set_num_threads(3)

def multiply():
    left = torch.ones(600, 600)
    left @ left
    (left + left).exp()
    return len(os.listdir("/proc/self/task"))

async def main():
    before = len(os.listdir("/proc/self/task"))
    during = await (in_passing_thread if sys.argv[1] == "passing" else asyncio.to_thread)(multiply)
    for _ in range(100):  # helpers end on their own once their thread has
        left = len(os.listdir("/proc/self/task")) - before
        if left <= 0:
            break
        await asyncio.sleep(0.02)
    print(during - before, left)

asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("how", "left"), [("passing", 0), ("pool", 3)])
def test_openmp_helpers_end_with_their_thread(how: str, left: int) -> None:
    """The pool shows that what is left is seen."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    during, after = map(int, ran.stdout.split())
    assert during >= 3
    assert (after <= left) if how == "passing" else (after >= left)


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        names = [await in_passing_thread(lambda: threading.current_thread().name) for _ in range(2)]
        assert all(name.startswith("paceline-load") for name in names)
        assert await in_passing_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_passing_thread(divmod, 7, 0)

    asyncio.run(main())


def test_who_is_cancelled_does_not_wait() -> None:
    going = threading.Event()

    async def main() -> None:
        task = asyncio.create_task(in_passing_thread(going.wait, 60))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(main())
    finally:
        going.set()
