"""The same client for code without an event loop: `AsyncClient` on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from paceline_client.address import DEFAULT_ADDRESS
from paceline_client.client import AsyncClient
from paceline_client.connection import RetryPolicy, TlsOptions
from paceline_client.errors import ClientError
from paceline_client.replies import Event, Reply
from paceline_client.request import GenerateFields, Prompt
from paceline_client.service import ModelInfo, Status

T = TypeVar("T")


class Stream:
    """A reply as it comes. Iterate it; `close` (or leaving its `with` block) ends the call at once."""

    def __init__(self, events: AsyncGenerator[Event, None], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._events, self._run = events, run

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            event: Event | None = self._run(anext_or_none(self._events))
        except KeyboardInterrupt:
            self.close()
            raise
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the call; the server frees its session."""
        self._run(self._events.aclose())


async def anext_or_none(events: AsyncGenerator[Event, None]) -> Event | None:
    """The next event, or None at the end."""
    return await anext(events, None)


class Client:
    """Talks to one Paceline server from code without an event loop. Safe to use from several threads."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: TlsOptions | None = None,
        application: str | None = None,
        retry: RetryPolicy | None = None,
        keepalive_s: float | None = None,
    ) -> None:
        """Arguments as of AsyncClient. Starts a thread; `close` (or a `with` block) ends it."""
        self._client = AsyncClient(address, tls=tls, application=application, retry=retry, keepalive_s=keepalive_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, every call on it and the thread. A second close does nothing."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Unpack[GenerateFields]) -> Stream:
        """The reply as it comes: Deltas, then one Finish; n replies side by side. As AsyncClient.generate."""
        return Stream(self._client.generate(prompt, timeout_s=timeout_s, **fields), self._run)

    def complete(self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Unpack[GenerateFields]) -> Reply:
        """The whole reply at once."""
        return self._run(self._client.complete(prompt, timeout_s=timeout_s, **fields))

    def complete_all(
        self, prompt: Prompt, *, timeout_s: float | None = None, **fields: Unpack[GenerateFields]
    ) -> tuple[Reply, ...]:
        """All n whole replies at once, by index."""
        return self._run(self._client.complete_all(prompt, timeout_s=timeout_s, **fields))

    def get_model_info(self, *, timeout_s: float | None = 10.0) -> ModelInfo:
        """The served model, its limits and defaults."""
        return self._run(self._client.get_model_info(timeout_s=timeout_s))

    def status(self, *, timeout_s: float | None = 10.0) -> Status:
        """Live state of the service."""
        return self._run(self._client.status(timeout_s=timeout_s))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise ClientError("the client is closed")
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _settle(outcome, task))

        def stop() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before it could begin
                work.close()
                outcome.set_exception(asyncio.CancelledError())

        try:
            self._loop.call_soon_threadsafe(begin)
            return outcome.result()
        except BaseException:
            if not outcome.done():  # Ctrl-C while waiting: the call must not go on unseen
                self._loop.call_soon_threadsafe(stop)
                outcome.exception()
            raise


def _settle(outcome: Future[T], task: asyncio.Task[T]) -> None:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
