"""A gateway in front of real targets on a table model, with a real drafter where a test wants one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.rig import Directory, Served, serve, until
from paceline.drafter.config import DrafterConfig
from paceline.drafter.proposer import Proposer
from paceline.drafter.server import DrafterServer
from paceline.gateway.directory import TargetLease
from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.target.config import TargetConfig
from paceline.target.link import DrafterLease
from paceline.target.server import TargetServer

VOCAB = 16


def table(seed: int = 3) -> NDArray[np.float64]:
    """[vocab, vocab] next-token probabilities without zeros."""
    weights = np.exp(3 * np.random.default_rng(seed).random((VOCAB, VOCAB)))
    return weights / weights.sum(axis=1, keepdims=True)


def counting() -> NDArray[np.float64]:
    """After token t comes t + 1, and 0 after the last."""
    return np.roll(np.eye(VOCAB), 1, axis=1)


@dataclass
class Drafters:
    """A directory that names one drafter."""

    found: DrafterLease

    async def lease(self) -> DrafterLease:
        return self.found


@dataclass
class Stack:
    """A gateway and its real targets."""

    served: Served
    targets: list[TargetServer]
    runners: list[ToyRunner]
    leases: list[TargetLease]

    async def idle(self) -> None:
        """Returns once no session and no KV page is held."""
        await until(
            lambda: all(
                target.engine.status().active + target.engine.status().queued == 0 and runner.kv.pages_used == 0
                for target, runner in zip(self.targets, self.runners, strict=True)
            )
        )
        for runner in self.runners:
            runner.kv.check_integrity()


@asynccontextmanager
async def stack(
    probabilities: NDArray[np.float64],
    *,
    replicas: int = 1,
    eos: frozenset[int] = frozenset(),
    tokenizer: Any = None,
    before: Callable[[PassPlan], None] = lambda _: None,
    context_length: int = 4096,
    proposer: Proposer | None = None,
    gateway: dict[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Stack]:
    """`proposer` None: no drafter. `gateway` and `config` are settings of gateway and targets."""
    tokenizer = tokenizer or ToyTokenizer.numbered(VOCAB, eos)
    targets, runners, leases = [], [], []
    async with AsyncExitStack() as life:
        drafter = None
        if proposer is not None:
            server = DrafterServer(DrafterConfig(), proposer)
            life.push_async_callback(server.stop, 0.0)
            drafter = Drafters(DrafterLease(await server.start(), "drafter"))
        for _ in range(replicas):
            runner = ToyRunner(probabilities, eos=eos, context_length=context_length, before_execute=before)
            target = TargetServer(TargetConfig(**{"kv_tokens": 65536, **config}), drafter, runner, tokenizer)
            life.push_async_callback(target.stop, 0)
            leases.append(TargetLease(await target.start(), target.incarnation))
            targets.append(target)
            runners.append(runner)
        served = await life.enter_async_context(serve(Directory(list(leases)), tokenizer, **(gateway or {})))
        if drafter is not None:
            await until(lambda: all(target.engine._link.generation is not None for target in targets))
        yield Stack(served, targets, runners, leases)
