"""A drafter in a process of its own, to be killed, stopped and continued."""

from __future__ import annotations

import os
import signal

from paceline.drafter.config import DrafterConfig
from paceline.study.stack import Process, drafter_main, launch


class DrafterProcess:
    """The real drafter with the suffix proposer."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._gone = False
        self.address = process.address

    @classmethod
    async def start(cls, port: int = 0) -> DrafterProcess:
        return cls(await launch("drafter", drafter_main, DrafterConfig(port=port), 1))

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._gone = True
        await self._process.stop()

    async def end(self) -> None:
        if not self._gone:
            self.signal(signal.SIGCONT)
            await self._process.stop()
