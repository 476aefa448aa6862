"""The three services as local processes without Ray: the servers the deployments wrap, on loopback.

Studies measure the services themselves; placement and scaling are Ray's part and are left out of the figures.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch

from paceline.drafter.config import DrafterConfig
from paceline.gateway.config import GatewayConfig, ListenerConfig
from paceline.target.config import TargetConfig

START_S = 300.0  # a process that has not reported its address by then has failed


class _Server(Protocol):
    async def start(self) -> str: ...

    async def stop(self, grace_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What to start. `drafter` None decodes plainly."""

    target: TargetConfig
    drafter: DrafterConfig | None
    gateway: GatewayConfig = field(default_factory=lambda: GatewayConfig(listener=ListenerConfig()))
    target_threads: int = 2
    drafter_threads: int = 1


@dataclass(frozen=True, slots=True)
class Process:
    """A running service. Closing `pipe` ends it."""

    name: str
    address: str
    pid: int
    process: Any  # multiprocessing's process types share no public base
    pipe: Connection

    async def stop(self) -> None:
        """Ends the service and waits for its process; kills it if it does not end within ten seconds."""
        self.pipe.close()
        await asyncio.to_thread(self.process.join, 10)
        if self.process.is_alive():
            self.process.kill()
            await asyncio.to_thread(self.process.join)


@dataclass(frozen=True, slots=True)
class Stack:
    """The running services; clients talk to `address`."""

    gateway: Process
    target: Process
    drafter: Process | None

    @property
    def address(self) -> str:
        """Address of the gateway's direct listener."""
        return self.gateway.address


@asynccontextmanager
async def running(config: StackConfig) -> AsyncIterator[Stack]:
    """Starts the services, yields the Stack, and ends every process, also after an error."""
    async with AsyncExitStack() as stack:

        async def start(name: str, main: Callable[..., None], *arguments: object) -> Process:
            process = await launch(name, main, *arguments)
            stack.push_async_callback(process.stop)
            return process

        drafter = None
        if config.drafter is not None:
            drafter = await start("drafter", drafter_main, config.drafter, config.drafter_threads)
        target = await start(
            "target", target_main, config.target, config.target_threads, drafter.address if drafter else None
        )
        gateway = await start("gateway", gateway_main, config.gateway, target.address)
        yield Stack(gateway, target, drafter)


async def launch(name: str, main: Callable[..., None], *arguments: object) -> Process:
    """Spawns `main(pipe, *arguments)` and waits for the address it reports. Raises RuntimeError with its error.

    Leaves no process behind if it raises or is cancelled.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments), name=f"paceline-{name}", daemon=True)
    with _interrupts_ignored():  # as the process inherits it: Ctrl-C ends it through the pipe, also while it starts
        process.start()
    theirs.close()
    try:
        answered = await asyncio.to_thread(ours.poll, START_S)
        kind, value = ours.recv() if answered else ("error", f"no answer within {START_S:.0f} s")
    except EOFError:
        kind, value = "error", "the process ended while starting"
    except BaseException:
        process.kill()  # which also ends the poll in its thread
        process.join()
        raise
    if kind != "ready":
        process.kill()
        process.join()
        ours.close()
        raise RuntimeError(f"{name} did not start: {value}")
    return Process(name, value, process.pid or 0, process, ours)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # a handler that is not Python's cannot be put back, and only the main thread may set one
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def serve_until_closed(pipe: Connection, make: Callable[[], Awaitable[_Server]]) -> None:
    """Runs a server in this process until the other end of `pipe` closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us through the pipe

    async def run() -> None:
        try:
            server = await make()
            address = await server.start()
        except Exception as error:
            pipe.send(("error", str(error)))
            return
        pipe.send(("ready", address))
        closed = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), closed.set)
        await closed.wait()
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        await server.stop(1.0)

    asyncio.run(run())


def drafter_main(pipe: Connection, config: DrafterConfig, threads: int) -> None:
    """Entry of the drafter's process."""
    from paceline.drafter.server import DrafterServer

    torch.set_num_threads(threads)

    async def make() -> _Server:
        return DrafterServer(config)

    serve_until_closed(pipe, make)


def target_main(pipe: Connection, config: TargetConfig, threads: int, drafter_address: str | None) -> None:
    """Entry of the target's process."""
    from paceline.target.directory import DrafterLease
    from paceline.target.server import TargetServer

    torch.set_num_threads(threads)

    class Directory:
        async def lease(self) -> DrafterLease | None:
            return None if drafter_address is None else DrafterLease(drafter_address, "local")

    async def make() -> _Server:
        return TargetServer(config, Directory())

    serve_until_closed(pipe, make)


def gateway_main(pipe: Connection, config: GatewayConfig, target_address: str) -> None:
    """Entry of the gateway's process."""
    from paceline.gateway.directory import TargetLease
    from paceline.gateway.listener import GatewayServer

    class Directory:
        async def lease(self) -> TargetLease:
            return TargetLease(target_address, "local")

    async def make() -> _Server:
        return GatewayServer(config, Directory())

    serve_until_closed(pipe, make)
