"""Runs of the command line in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.rig import within


@dataclass
class Done:
    """A finished run."""

    code: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PACELINE_ADDRESS"}
    return {**kept, "PYTHONUNBUFFERED": "1", **changes}


@asynccontextmanager
async def started(*arguments: str, **changes: str) -> AsyncIterator[Process]:
    """A run that goes on; killed at the end if it still does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "paceline_client.cli", *arguments,
        stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(**changes),
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run(*arguments: str, stdin: str = "", **changes: str) -> Done:
    async with started(*arguments, **changes) as process:
        out, err = await within(process.communicate(stdin.encode()))
        return Done(process.returncode or 0, out.decode(), err.decode())
