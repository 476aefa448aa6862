"""Many sessions over real gRPC: none sees another's text, cancelled ones leave nothing, and the law is the model's."""

from __future__ import annotations

import asyncio
import os
import random

import numpy as np
import pytest
from scipy import stats

from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.runtime.toy import ToyRunner
from paceline.study.memory import resident_mib
from paceline.v1 import common_pb2, target_pb2
from target.rig import random_table
from target.wire import Directory, collect, message, target, until

MARKERS = 16
STEPS = 8


def cycles() -> np.ndarray:
    """Token m * STEPS + i is followed by m * STEPS + (i + 1) % STEPS: a session's marker never leaves its text."""
    size = MARKERS * STEPS
    table = np.zeros((size, size))
    for token in range(size):
        marker, step = divmod(token, STEPS)
        table[token, marker * STEPS + (step + 1) % STEPS] = 1.0
    return table


async def test_two_hundred_sessions_half_of_them_cancelled() -> None:
    """Cases E1 and E3. At the end both sides hold what they held at the start."""
    generator = random.Random(3)
    drafter = DrafterServer(DrafterConfig())
    address = await drafter.start()
    runner = ToyRunner(cycles(), context_length=2000)
    try:
        async with target(runner, Directory(address), max_sessions=8, max_queue=200) as served:
            await served.drafter_state("ready")
            gate = asyncio.Semaphore(16)
            before_mib = 0

            async def session(number: int) -> int:
                marker, length = number % MARKERS, generator.randrange(20, 120)
                leaves_after = generator.randrange(0, 40) if number % 2 else None
                async with gate:
                    call = served.stub.Decode(message([marker * STEPS] * 3, length, ignore_eos=True))
                    if leaves_after is None:
                        tokens, _ = await collect(call)
                        assert tokens == [marker * STEPS + (i + 1) % STEPS for i in range(length)]
                        return 1
                    tokens = []
                    while len(tokens) < min(leaves_after, length - 1):
                        response = await call.read()
                        if not isinstance(response, target_pb2.DecodeResponse) or response.HasField("finish"):
                            return 1
                        tokens += np.frombuffer(response.tokens, dtype="<i4").tolist()
                    assert {token // STEPS for token in tokens} <= {marker}
                    call.cancel()
                    return 0

            await asyncio.gather(*(session(number) for number in range(40)))  # warms buffers and pools up
            before_mib = resident_mib(os.getpid())
            finished = await asyncio.gather(*(session(number) for number in range(200)))
            assert sum(finished) >= 100
            await served.idle()

            async def drafter_sessions() -> int:
                return drafter.sessions

            await until(drafter_sessions, 0)
            assert drafter.streams == 1
            runner.kv.check_integrity()
            assert runner.kv.sequences == 0
            assert resident_mib(os.getpid()) - before_mib < 30
    finally:
        await drafter.stop(1.0)


@pytest.mark.parametrize("draft", [True, False])
async def test_the_law_through_the_services(draft: bool) -> None:
    """20 000 tokens over eight seeds; G-test of 25 transitions, false alarm 1e-6 for all of them together."""
    table = random_table(5, seed=2, sharpness=1.0)
    drafter = DrafterServer(DrafterConfig())
    address = await drafter.start()
    try:
        async with target(ToyRunner(table, context_length=3000), Directory(address)) as served:
            await served.drafter_state("ready")
            speculation = common_pb2.SpeculationParams(
                draft=draft,
                budget=8 if draft else 0,
                proposal=common_pb2.PROPOSAL_COUPLED if draft else 1,
                strength=2.0,
                selection=common_pb2.SELECTION_RULE_AUTO,
                wait=common_pb2.WAIT_MODE_DEADLINE,
            )
            accepted = 0

            async def stream(seed: int) -> list[int]:
                nonlocal accepted
                sampling = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=seed)
                tokens, finish = await collect(
                    served.stub.Decode(
                        message([seed % 5], 2500, sampling=sampling, speculation=speculation, ignore_eos=True)
                    )
                )
                accepted += finish.speculation.accepted
                return [seed % 5, *tokens]

            replies = await asyncio.gather(*(stream(seed) for seed in range(8)))
            assert (accepted > 1000) == draft
    finally:
        await drafter.stop(1.0)
    counts = np.zeros((5, 5))
    for reply in replies:
        np.add.at(counts, (reply[:-1], reply[1:]), 1)
    assert counts.sum() == 20_000
    statistic = sum(
        stats.power_divergence(seen, probs * seen.sum(), lambda_="log-likelihood").statistic
        for seen, probs in zip(counts, table, strict=True)
    )
    assert stats.chi2.sf(statistic, df=5 * 4) > 1e-6
