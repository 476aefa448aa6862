"""A Ray cluster of fake nodes for tests, and the replicas they run: toy models with switches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paceline.target.config import TargetConfig
from paceline.target.deployment import TargetReplica
from paceline.target.directory import DrafterDirectory

VOCAB = 8


@contextmanager
def switched_on(switch: Path) -> Iterator[None]:
    """The file is there within the block."""
    switch.touch()
    try:
        yield
    finally:
        switch.unlink(missing_ok=True)


class BlockingTarget(TargetReplica):
    """A target over a table model whose pass blocks, as a native call does, while a file is there."""

    switch: Path

    def make_server(self, settings: TargetConfig, directory: DrafterDirectory | None) -> Any:
        from paceline.runtime.toy import ToyRunner
        from paceline.runtime.toy_tokenizer import ToyTokenizer
        from paceline.target.server import TargetServer

        switch = self.switch

        def block(_: object) -> None:
            while switch.exists():
                time.sleep(0.05)

        table = np.full((VOCAB, VOCAB), 1.0 / VOCAB)
        return TargetServer(settings, directory, ToyRunner(table, before_execute=block), ToyTokenizer.numbered(VOCAB))


class WhereReplica:
    """Tells where it runs."""

    async def where(self) -> str:
        """Id of the node."""
        import ray

        return ray.get_runtime_context().get_node_id()


async def until(condition: Any, patience_s: float = 60.0) -> Any:
    """Waits until `condition()`, plain or awaitable, is true; returns its value."""
    deadline = time.monotonic() + patience_s
    while True:
        value = condition()
        value = await value if asyncio.iscoroutine(value) else value
        if value:
            return value
        assert time.monotonic() < deadline, "what was waited for did not come"
        await asyncio.sleep(0.1)
