"""A target in a process of its own, to be killed: five tokens, then silence. Prints its address."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gateway.rig import FakeTarget, Step
from paceline.v1 import target_pb2


async def silent_after_five(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
    for byte in b"The q":
        yield [byte]
    await asyncio.Event().wait()


async def main() -> None:
    lease = await FakeTarget(silent_after_five).start()
    print(lease.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
