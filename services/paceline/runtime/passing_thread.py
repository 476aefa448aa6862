"""Work of torch that comes before serving, in a thread that is gone before serving begins.

Each thread that has run torch's operators keeps OpenMP helpers of its own. Where these and the compute thread's are
more than the CPUs together, GNU's OpenMP lets helpers sleep between operators instead of waiting awake, and waking them
takes as long as a small operator: on two cores every pass of the compute thread took twice its time while the thread
that had loaded the model was still there. A thread that ends takes its helpers along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_passing_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns or raises; its thread has ended by then."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="paceline-load")
    done = False
    try:
        found = await asyncio.get_running_loop().run_in_executor(executor, lambda: function(*args, **kwargs))
        done = True
        return found
    finally:
        executor.shutdown(wait=done)  # who was cancelled does not wait for a model to be loaded
