"""A drafter that dies, hangs and comes back in mid-stream: same tokens, no error, counted, resumed (case E4)."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest

from integration.drafter_process import DrafterProcess
from paceline.runtime.toy import ToyRunner
from paceline.v1 import common_pb2, target_pb2
from target.rig import random_table
from target.wire import Directory, Served, collect, message, target, until

VOCAB = 12
TOKENS = 1500
TABLE = random_table(VOCAB, seed=4)
SAMPLING = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=0.95, seed=77)


@asynccontextmanager
async def drafted(**config: object) -> AsyncIterator[tuple[Served, Directory, DrafterProcess]]:
    drafter = await DrafterProcess.start()
    directory = Directory(drafter.address)
    try:
        async with target(ToyRunner(TABLE, context_length=8000), directory, **config) as served:
            await served.drafter_state("ready")
            yield served, directory, drafter
    finally:
        await drafter.end()


def wanted(*, draft: bool = True) -> target_pb2.DecodeRequest:
    speculation = common_pb2.SpeculationParams(
        draft=draft, budget=8 if draft else 0, proposal=common_pb2.PROPOSAL_RANKED, strength=2.0
    )
    return message([1, 2, 3], TOKENS, sampling=SAMPLING, speculation=speculation)


async def read_until(call: grpc.aio.UnaryStreamCall, tokens: list[int], count: int) -> None:
    while len(tokens) < count:
        response = await call.read()
        tokens += np.frombuffer(response.tokens, dtype="<i4").tolist()


@pytest.mark.parametrize("trouble", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_drafter_in_trouble_changes_nothing_but_the_speed(trouble: signal.Signals) -> None:
    async with drafted(draft_deadline_ms=200.0, probe_ms=50.0) as (served, directory, drafter):
        plain, _ = await collect(served.stub.Decode(wanted(draft=False)))
        call = served.stub.Decode(wanted())
        tokens: list[int] = []
        await read_until(call, tokens, 200)
        returned: DrafterProcess | None = None
        if trouble is signal.SIGKILL:
            await drafter.kill()
        else:
            drafter.signal(signal.SIGSTOP)
        try:
            rest, finish = await collect(call)
            assert tokens + rest == plain
            assert sum(finish.speculation.fallbacks.values()) > 0
            assert set(finish.speculation.fallbacks) <= {"lost", "late", "suspended", "absent"}
            if trouble is signal.SIGKILL:
                returned = await DrafterProcess.start()
                directory.address = returned.address
            else:
                drafter.signal(signal.SIGCONT)

            async def resumed() -> bool:
                again, after = await collect(served.stub.Decode(wanted()))
                assert again == plain
                return after.speculation.accepted > 100

            await until(resumed, True)
        finally:
            if returned is not None:
                await returned.end()


async def test_a_killed_drafter_comes_back_within_one_reply() -> None:
    async with drafted(draft_deadline_ms=200.0) as (served, directory, drafter):
        plain, _ = await collect(served.stub.Decode(wanted(draft=False)))
        call = served.stub.Decode(wanted())
        tokens: list[int] = []
        await read_until(call, tokens, 50)
        directory.address = None
        await drafter.kill()
        returned = await DrafterProcess.start()
        directory.address = returned.address
        try:
            rest, _ = await collect(call)
            assert tokens + rest == plain
        finally:
            await returned.end()
