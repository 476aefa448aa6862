"""Clients that leave at any stage: both services are as before, and whoever stays feels nothing (cases E1, E3)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.rpc.channels import open_channel
from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.target.events import Cancel
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc
from target.rig import PATIENCE_S, plain, random_table, request, sampled
from target.wire import Directory, Served, collect, message, speculation, target, until

VOCAB = 24
TABLE = random_table(VOCAB, seed=9, sharpness=8.0)
SLOT = 3000  # tokens of the reply that is left behind


class Gate:
    """Holds passes while it is shut, and counts those that run."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        self.passes = 0

    def __call__(self, plan: PassPlan) -> None:
        self.passes += 1
        self.reached.set()
        assert self.open.wait(PATIENCE_S)


@asynccontextmanager
async def services(runner: ToyRunner, **config: object) -> AsyncIterator[tuple[Served, DrafterServer]]:
    drafter = DrafterServer(DrafterConfig())
    address = await drafter.start()
    try:
        async with target(runner, Directory(address), draft_deadline_ms=10_000.0, **config) as served:
            await served.drafter_state("ready")
            yield served, drafter
            await empty(served, drafter)
            assert drafter.streams == 1, "the link has stayed"
    finally:
        await drafter.stop(0)


async def empty(served: Served, drafter: DrafterServer) -> None:
    """Returns once neither side holds a session, nor a KV page."""
    await served.idle()

    async def held() -> int:
        return drafter.sessions

    await until(held, 0)


async def sessions_are(served: Served, active: int, queued: int) -> None:
    async def counts() -> tuple[int, int]:
        status = await served.status()
        return status.active_sessions, status.queued_sessions

    await until(counts, (active, queued))


async def cancels_are(served: Served, count: int) -> None:
    """Returns once the engine, held up in a pass, has that many clients' ends before it."""

    async def waiting() -> int:
        return sum(isinstance(event, Cancel) for event in served.server.engine.inbox._events)

    await until(waiting, count)


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("stage", ["queued", "reading", "decoding"])
async def test_a_client_that_leaves_is_forgotten_by_both_services(stage: str, how: str) -> None:
    gate = Gate()
    if stage == "decoding":
        gate.open.set()
    runner = ToyRunner(TABLE, before_execute=gate)
    async with services(runner, max_sessions=1, step_tokens=16, prefill_chunk=8) as (served, drafter):
        async with open_channel(served.address) as channel:
            stub = target_pb2_grpc.TargetServiceStub(channel)
            first = stub.Decode(message([1] * 40, SLOT, ignore_eos=True))
            calls = [first]
            if stage == "decoding":
                for _ in range(3):
                    await first.read()
            else:  # in the first of three passes over its prompt
                assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
                await sessions_are(served, 1, 0)
            if stage == "queued":
                calls = [stub.Decode(message([2], SLOT, ignore_eos=True)) for _ in range(3)]
                await sessions_are(served, 1, 3)
            if how == "cancel":
                for call in calls:
                    call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calls[0].read()
            else:
                await channel.close(0)
            if stage == "queued" and how == "cancel":
                await until_ended(calls)
                first.cancel()
        if stage != "decoding":
            await cancels_are(served, len({first, *calls}))
        gate.open.set()
        await empty(served, drafter)
        if stage != "decoding":
            assert gate.passes <= 2, "of three thousand"
        before = gate.passes
        tokens, _ = await collect(served.stub.Decode(message([3], 5, ignore_eos=True)))
        assert tokens == plain(ToyRunner(TABLE), request([3], 5, ignore_eos=True))
        assert gate.passes <= before + 5


async def until_ended(calls: list[grpc.aio.UnaryStreamCall]) -> None:
    for call in calls:
        assert await call.code() is grpc.StatusCode.CANCELLED


def wish(generator: random.Random) -> tuple[common_pb2.SamplingParams, common_pb2.SpeculationParams]:
    greedy = generator.random() < 0.2
    sampling = common_pb2.SamplingParams(
        temperature=0.0 if greedy else generator.choice([0.7, 1.0]),
        top_k=generator.choice([0, 5]),
        top_p=generator.choice([0.9, 1.0]),
        seed=generator.randrange(2**64),
    )
    budget = generator.choice([0, 1, 4, 12])
    coupled = not greedy and generator.random() < 0.5
    proposal = common_pb2.PROPOSAL_COUPLED if coupled else common_pb2.PROPOSAL_RANKED
    wish = speculation(budget, proposal=proposal)
    wish.draft = budget > 0
    return sampling, wish


async def test_every_finished_answer_equals_its_solo_run_however_many_leave() -> None:
    """Prompts, seeds, kinds of drafts and lengths of all sorts; every second client leaves somewhere on the way."""
    generator = random.Random(12)
    asked: list[tuple[target_pb2.DecodeRequest, int | None]] = []
    expected: list[list[int]] = []
    for number in range(64):
        prompt = [generator.randrange(VOCAB) for _ in range(generator.randint(1, 40))]
        length = generator.randint(10, 120)
        sampling, speculation = wish(generator)
        asked.append(
            (
                message(prompt, length, sampling=sampling, speculation=speculation),
                generator.randrange(length) if number % 2 else None,
            )
        )
        params = sampled(sampling.temperature, sampling.seed, sampling.top_p, sampling.top_k)
        expected.append(plain(ToyRunner(TABLE), request(prompt, length, sampling=params)))
    gate = asyncio.Semaphore(16)
    async with services(ToyRunner(TABLE), max_sessions=6, max_queue=64, step_tokens=64) as (served, _):

        async def one(number: int) -> bool:
            wanted, leaves_after = asked[number]
            async with gate:
                call = served.stub.Decode(wanted)
                if leaves_after is None:
                    tokens, _ = await collect(call)
                    assert tokens == expected[number]
                    return True
                seen: list[int] = []
                while len(seen) < leaves_after:
                    seen += np.frombuffer((await call.read()).tokens, dtype="<i4").tolist()
                assert seen == expected[number][: len(seen)]
                call.cancel()
                return False

        finished = await asyncio.gather(*(one(number) for number in range(len(asked))))
        assert sum(finished) == 32
