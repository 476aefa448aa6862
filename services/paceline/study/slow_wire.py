"""A TCP relay that holds every byte back for half a round trip: a distant drafter on one machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK = 1 << 16


@asynccontextmanager
async def delayed(address: str, rtt_s: float) -> AsyncIterator[str]:
    """Yields an address that leads to `address`; what goes either way arrives `rtt_s / 2` later, in order."""
    host, _, port = address.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(_pump(source, target, rtt_s / 2))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Timers fire in the order they were set, so that bytes keep theirs."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(CHUNK):
            loop.call_later(delay_s, _write, writer, data)
        await asyncio.sleep(delay_s)
    except ConnectionError:
        pass
    finally:
        writer.close()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
