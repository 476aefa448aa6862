"""Rounds by selection rule, overlapped and not: drafter and target over gRPC, with a wire of a given length."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from paceline.drafter.config import DrafterConfig
from paceline.drafter.proposer import Proposer
from paceline.drafter.server import DrafterServer
from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.rpc.convert import PROPOSAL_NUMBERS, SELECTION_NUMBERS, WAIT_NUMBERS, sampling_to_proto
from paceline.runtime.runner import ModelRunner
from paceline.runtime.tokenizer import TextTokenizer
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.sampling import SamplingParams
from paceline.study.busy import BusyRunner
from paceline.study.round_times import RoundTimes, round_times
from paceline.study.serial import SerialRounds
from paceline.study.slow_wire import delayed
from paceline.target.config import TargetConfig
from paceline.target.directory import DrafterLease
from paceline.target.record import RoundRecord
from paceline.target.row_cache import RowCache
from paceline.target.server import TargetServer
from paceline.v1 import common_pb2, target_pb2, target_pb2_grpc

PATIENCE_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run rounds."""

    name: str
    rule: Selection
    wait: WaitFor = WaitFor.TREE
    serial: bool = False  # the row pass waits for the tree


VARIANTS = (
    Variant("draft", Selection.DRAFT),
    Variant("rerank", Selection.RERANK),
    Variant("rerank, one after the other", Selection.RERANK, serial=True),
    Variant("draw_first", Selection.DRAW_FIRST),
    Variant("draw_first, one after the other", Selection.DRAW_FIRST, serial=True),
    Variant("draw_first, never idle", Selection.DRAW_FIRST, WaitFor.NEVER),
    Variant("auto", Selection.AUTO),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what drafts for it."""

    runner: ModelRunner
    tokenizer: TextTokenizer
    proposer: Proposer


@dataclass(frozen=True, slots=True)
class Work:
    """What is decoded in a cell: each prompt once, one after the other."""

    prompts: Sequence[Sequence[int]]
    new_tokens: int
    budget: int
    temperature: float


@dataclass(frozen=True, slots=True)
class _Directory:
    address: str

    async def lease(self) -> DrafterLease:
        return DrafterLease(self.address, "study")


async def measure(pair: Pair, variant: Variant, work: Work, rtt_s: float) -> dict[str, Any]:
    """One cell: figures of its rounds, and of the whole decode."""
    records: list[RoundRecord] = []
    runner = BusyRunner(pair.runner)
    drafter = DrafterServer(DrafterConfig(), pair.proposer)
    config = TargetConfig(draft_deadline_ms=PATIENCE_MS, cost_aware=False, learn=False)
    rule = (lambda made: SerialRounds(made.costs, RowCache(0))) if variant.serial else None
    try:
        async with delayed(await drafter.start(), rtt_s) as address:
            target = TargetServer(config, _Directory(address), runner, pair.tokenizer, records.append, rule)
            try:
                async with open_channel(await target.start()) as channel:
                    stub = target_pb2_grpc.TargetServiceStub(channel)
                    await _linked(stub)
                    busy_s, passes, seconds, tokens = runner.busy_s, runner.passes, 0.0, 0
                    for number, prompt in enumerate(work.prompts):
                        started = time.perf_counter()
                        tokens += await _decode(stub, _request(prompt, variant, work, number))
                        seconds += time.perf_counter() - started
            finally:
                await target.stop(1.0)
    finally:
        await drafter.stop(1.0)
    busy_s, passes = runner.busy_s - busy_s, runner.passes - passes
    times = _merged([round_times(each) for each in _by_session(records)])
    return {
        "variant": variant.name,
        "rtt_ms": rtt_s * 1e3,
        **times,
        "tokens_per_s": tokens / seconds,
        "tokens_per_pass": tokens / passes,
        "busy_share": busy_s / seconds,
        "chosen": _chosen(records) if variant.rule is Selection.AUTO else variant.rule.value,
    }


def _request(prompt: Sequence[int], variant: Variant, work: Work, seed: int) -> target_pb2.DecodeRequest:
    coupled = work.temperature > 0
    speculation = common_pb2.SpeculationParams(
        draft=True,
        budget=work.budget,
        proposal=PROPOSAL_NUMBERS[Proposal.COUPLED if coupled else Proposal.RANKED],
        selection=SELECTION_NUMBERS[variant.rule],
        wait=WAIT_NUMBERS[variant.wait],
    )
    if coupled:
        speculation.strength = 2.0
    return target_pb2.DecodeRequest(
        prompt_tokens=ints_to_bytes(prompt),
        max_tokens=work.new_tokens,
        ignore_eos=True,
        sampling=sampling_to_proto(SamplingParams(temperature=work.temperature, seed=seed)),
        speculation=speculation,
    )


async def _decode(stub: target_pb2_grpc.TargetServiceStub, request: target_pb2.DecodeRequest) -> int:
    call = stub.Decode(request)
    while (response := await call.read()) is not grpc.aio.EOF:
        if response.WhichOneof("event") == "finish":
            return int(response.finish.usage.completion_tokens)
    raise RuntimeError("the target ended a reply without a finish")


async def _linked(stub: target_pb2_grpc.TargetServiceStub) -> None:
    while True:
        answer = await stub.GetTargetStatus(target_pb2.GetTargetStatusRequest())
        if answer.target.drafter_state == "ready":
            return
        await asyncio.sleep(0.02)


def _by_session(records: Sequence[RoundRecord]) -> list[list[RoundRecord]]:
    found: dict[int, list[RoundRecord]] = {}
    for record in records:
        found.setdefault(record.session, []).append(record)
    return list(found.values())


def _merged(parts: Sequence[RoundTimes]) -> Mapping[str, float]:
    """Means over rounds; times in milliseconds."""
    total = sum(part.rounds for part in parts)

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) * part.rounds for part in parts)) / total

    times = {f"{name}_ms": mean(f"{name}_s") * 1e3 for name in ("round", "draft", "verify", "exposed")}
    return {"rounds": total, **times, **{name: mean(name) for name in ("accepted", "emitted", "hit_share")}}


def _chosen(records: Sequence[RoundRecord]) -> str:
    rules = [record.rule for record in records]
    return max(set(rules) - {"plain"}, key=rules.count, default="plain")
