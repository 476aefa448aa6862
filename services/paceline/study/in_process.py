"""The three services in this process, over loopback gRPC, around a model loaded once: for equality, not for speed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from paceline.drafter.config import DrafterConfig
from paceline.drafter.proposer import Proposer
from paceline.drafter.server import DrafterServer
from paceline.gateway.config import GatewayConfig, ListenerConfig
from paceline.gateway.directory import TargetLease
from paceline.gateway.listener import GatewayServer
from paceline.runtime.runner import ModelRunner
from paceline.runtime.tokenizer import TextTokenizer
from paceline.target.config import TargetConfig
from paceline.target.directory import DrafterLease
from paceline.target.server import TargetServer


@dataclass(frozen=True, slots=True)
class _Drafters:
    address: str

    async def lease(self) -> DrafterLease:
        return DrafterLease(self.address, "study")


@dataclass(frozen=True, slots=True)
class _Targets:
    address: str

    async def lease(self) -> TargetLease:
        return TargetLease(self.address, "study")


@asynccontextmanager
async def services(
    runner: ModelRunner, tokenizer: TextTokenizer, config: TargetConfig, proposer: Proposer | None
) -> AsyncIterator[str]:
    """Starts drafter, target and gateway, yields the gateway's address, and stops them.

    Args:
        runner: the target's model; used by one set of services at a time.
        tokenizer: its tokenizer.
        config: settings of the target.
        proposer: what the drafter proposes; None is the suffix proposer.
    """
    async with AsyncExitStack() as stack:
        drafter = DrafterServer(DrafterConfig(), proposer)
        stack.push_async_callback(drafter.stop, 1.0)
        target = TargetServer(config, _Drafters(await drafter.start()), runner, tokenizer)
        stack.push_async_callback(target.stop, 1.0)
        targets = _Targets(await target.start())
        gateway = GatewayServer(GatewayConfig(listener=ListenerConfig()), targets, tokenizer)
        stack.push_async_callback(gateway.stop, 1.0)
        yield await gateway.start()
