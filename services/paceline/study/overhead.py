"""What a round costs without compute: target, wire and drafter around a table model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.drafter.config import DrafterConfig
from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.study.ratios import percentiles
from paceline.study.report import Report
from paceline.study.stack import drafter_main, launch
from paceline.study.store_costs import store_costs, store_note
from paceline.target.config import TargetConfig
from paceline.target.directory import DrafterLease
from paceline.target.server import TargetServer
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc

VOCAB = 64


async def study_overhead(rounds: int, progress: Callable[[str], None]) -> Report:
    """Times between the pieces a client of the target receives, one piece a round, drafted and plain.

    The target runs in this process, the drafter in its own; a pass over the table model takes microseconds. What the
    drafter's store costs by its size comes beside it.
    """
    drafter = await launch("drafter", drafter_main, DrafterConfig(), 1)
    table = np.random.default_rng(0).dirichlet(np.full(VOCAB, 0.3), size=VOCAB)
    config = TargetConfig(context_length=rounds * 12, kv_tokens=rounds * 16)

    class Directory:
        async def lease(self) -> DrafterLease:
            return DrafterLease(drafter.address, "study")

    runner = ToyRunner(table, context_length=rounds * 12, pages=rounds * 2)
    server = TargetServer(config, Directory(), runner, ToyTokenizer.numbered(VOCAB))
    rows: list[dict[str, Any]] = []
    try:
        address = await server.start()
        async with open_channel(address) as channel:
            stub = target_pb2_grpc.TargetServiceStub(channel)
            for name, draft in (("drafted", True), ("plain", False)):
                progress(f"{rounds} rounds, {name}")
                gaps, accepted, fallbacks = await _gaps(stub, rounds, draft=draft)
                points = dict(percentiles(gaps))
                rows.append(
                    {
                        "rounds": name,
                        "count": len(gaps),
                        "p50_ms": points[50] * 1e3,
                        "p90_ms": points[90] * 1e3,
                        "p99_ms": points[99] * 1e3,
                        "accepted": accepted,
                        "fallbacks": fallbacks,
                    }
                )
    finally:
        await server.stop(1.0)
        await drafter.stop()
    stores = store_costs(progress)
    return Report(
        "overhead",
        {"model": "table", "vocab": VOCAB},
        rows,
        notes=[
            "bar: p50 of a drafted round at most 2 ms; it holds the target's step, both gRPC hops and the proposer",
            *(store_note(row) for row in stores),
        ],
        passed=rows[0]["p50_ms"] <= 2.0,
        extra={"store": stores},
    )


async def _gaps(
    stub: target_pb2_grpc.TargetServiceStub, rounds: int, *, draft: bool
) -> tuple[list[float], int, dict[str, int]]:
    request = target_pb2.DecodeRequest(
        prompt_tokens=ints_to_bytes(range(16)),
        sampling=common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=1),
        max_tokens=rounds,
        ignore_eos=True,
        speculation=common_pb2.SpeculationParams(
            draft=draft, budget=8 if draft else 0, proposal=common_pb2.PROPOSAL_RANKED, strength=2.0
        ),
        request_id="overhead",
    )
    gaps: list[float] = []
    last: float | None = None
    finish = target_pb2.TargetFinish()
    async for response in stub.Decode(request):
        now = time.perf_counter()
        if response.WhichOneof("event") == "finish":
            finish = response.finish
        elif last is not None:
            gaps.append(now - last)
        last = now
    return gaps[len(gaps) // 10 :], finish.speculation.accepted, dict(finish.speculation.fallbacks)
