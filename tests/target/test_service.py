"""The target over real gRPC."""

from __future__ import annotations

import asyncio
import threading

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import Unavailable
from paceline.rpc.arrays import ints_to_bytes
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.target.config import TargetConfig
from paceline.target.decode_request import RequestLimits
from paceline.target.outbox import LoopOutbox
from paceline.target.server import TargetServer
from paceline.target.servicer import TargetServicer
from paceline.target.status import StatusReport
from paceline.v1 import common_pb2, target_pb2
from target.rig import PATIENCE_S, counting_table, plain, random_table, request, sampled
from target.wire import Directory, collect, message, target, until

VOCAB = 32
TABLE = random_table(VOCAB, seed=21)
NUCLEUS = common_pb2.NucleusVerification
RANKED = common_pb2.PROPOSAL_RANKED


def sampling(**fields: float) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(**{"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, **fields})


def speculation(**fields: object) -> common_pb2.SpeculationParams:
    return common_pb2.SpeculationParams(
        **{"draft": True, "budget": 4, "proposal": RANKED, "selection": 2, "wait": 2, **fields}
    )


async def test_a_reply_from_end_to_end() -> None:
    expected = plain(ToyRunner(TABLE), request([1, 2], 40, sampling=sampled(0.8, 9)))
    async with target(ToyRunner(TABLE)) as served:
        tokens, finish = await collect(
            served.stub.Decode(message([1, 2], 40, sampling=sampling(temperature=0.8, seed=9)))
        )
    assert tokens == expected
    assert finish.reason == common_pb2.FINISH_REASON_LENGTH
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (2, 40)
    assert finish.speculation.rounds == 40
    assert dict(finish.speculation.fallbacks) == {"absent": 38}
    assert 0 < finish.timings.ttft_s <= finish.timings.total_s


async def test_stop_strings_go_by_the_tokenizer() -> None:
    words = ["a", "b", "xENDy", "EN", "D", "ENG", "c", "d"]
    async with target(ToyRunner(counting_table(8)), tokenizer=ToyTokenizer(words)) as served:
        inside, finish = await collect(served.stub.Decode(message([0], 20, stop=["END"])))
        assert (inside, finish.stop_match) == ([1, 2], "END")
        across, finish = await collect(served.stub.Decode(message([2], 20, stop=["END"])))
        assert (across, finish.stop_match) == ([3, 4], "END")
        assert finish.reason == common_pb2.FINISH_REASON_STOP


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt_tokens": b""}, "prompt_tokens: got 'no token'"),
        ({"prompt_tokens": b"abc"}, "prompt_tokens.*3 bytes"),
        ({"prompt_tokens": ints_to_bytes([1, VOCAB])}, rf"prompt_tokens\[1\]: got {VOCAB}, allowed: 0 to {VOCAB - 1}"),
        ({"prompt_tokens": ints_to_bytes([-1])}, r"prompt_tokens\[0\]: got -1"),
        ({"prompt_tokens": ints_to_bytes([1] * 64)}, "64 tokens.*context limit of 64 tokens.*toy model's limit"),
        ({"delivered_tokens": ints_to_bytes([1] * 64)}, "delivered_tokens: got '64 tokens', allowed: at most 63"),
        ({"delivered_tokens": ints_to_bytes([99])}, r"delivered_tokens\[0\]: got 99"),
        ({"max_tokens": 0}, "max_tokens: got 0"),
        ({"stop": [""]}, r"stop\[0\]: got '0 characters', allowed: 1 to 256"),
        ({"stop": ["x" * 257]}, r"stop\[0\]: got '257 characters'"),
        ({"stop": ["x"] * 17}, "stop: got '17 strings', allowed: at most 16"),
        ({"sampling": sampling(temperature=-1)}, "temperature: got -1"),
        ({"sampling": sampling(temperature=float("nan"))}, "temperature: got nan"),
        ({"sampling": sampling(top_p=1.5)}, "top_p: got 1.5"),
        ({"sampling": sampling(top_k=-1)}, "top_k: got -1"),
        ({"sampling": sampling(top_k=VOCAB + 1)}, "top_k: got 33"),
        ({"sampling": common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0)}, "sampling.seed: got 'nothing'"),
        ({"speculation": speculation(budget=65)}, "speculation.budget: got 65, allowed: 0 to 64"),
        ({"speculation": speculation(proposal=0)}, "speculation.proposal: got 0"),
        (
            {"speculation": speculation(proposal=2, strength=2.0)},
            "speculation.proposal: got 'coupled', allowed: ranked where the most probable",
        ),
        ({"speculation": speculation(strength=float("inf"))}, "speculation.strength: got inf"),
        ({"speculation": common_pb2.SpeculationParams(budget=1)}, "speculation.draft: got 'nothing'"),
        ({"speculation": common_pb2.SpeculationParams(draft=True)}, "speculation.budget: got 'nothing', allowed: a"),
        ({"speculation": speculation(auto_budget=True)}, "speculation.budget: got 4, allowed: a value, or auto_budget"),
        ({"speculation": speculation(selection=0)}, "speculation.selection: got 0, allowed: auto"),
        ({"speculation": speculation(selection=9)}, "speculation.selection: got 9"),
        ({"speculation": speculation(wait=0)}, "speculation.wait: got 0, allowed: tree"),
        ({"speculation": speculation(deadline_ms=0)}, "speculation.deadline_ms: got 0, allowed: 1 to 60000"),
        ({"speculation": speculation(deadline_ms=70000)}, "speculation.deadline_ms: got 70000"),
        ({"speculation": speculation(wait=1, deadline_ms=5)}, "speculation.deadline_ms: got 5, allowed: absent"),
        ({"speculation": speculation(nucleus=NUCLEUS())}, "speculation.nucleus.mass: got 'nothing'"),
        ({"speculation": speculation(nucleus=NUCLEUS(mass=1.1))}, "speculation.nucleus.mass: got 1.1"),
        ({"speculation": speculation(nucleus=NUCLEUS(mass=0.5, max_deviation=-1))}, "nucleus.max_deviation: got -1"),
        ({"deviation_spent": float("nan")}, "deviation_spent: got nan"),
        ({"relaxed_tokens": 1}, "relaxed_tokens: got 1, allowed: 0 to 0"),
        (
            {
                "sampling": sampling(temperature=1.0),
                "speculation": speculation(proposal=2, strength=2.0, nucleus=NUCLEUS(mass=0.5)),
            },
            "speculation.proposal: got 'coupled', allowed: ranked or sampled",
        ),
        (
            {"sampling": sampling(temperature=1.0), "speculation": speculation(proposal=3, selection=4)},
            "speculation.selection: got 'rerank', allowed: draft, draw_first or auto",
        ),
    ],
)
async def test_bad_fields_are_refused_by_name(fields: dict[str, object], text: str) -> None:
    async with target(ToyRunner(TABLE, context_length=64)) as served:
        bad = message([1], 5)
        for field, value in fields.items():
            bad.ClearField(field)
            filled = target_pb2.DecodeRequest(**{field: value})  # type: ignore[arg-type]
            bad.MergeFrom(filled)
        with pytest.raises(grpc.aio.AioRpcError, match=text) as raised:
            await collect(served.stub.Decode(bad))
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await served.status()).passes == 0
        assert len((await collect(served.stub.Decode(message([1], 5))))[0]) == 5


async def test_a_target_that_does_not_learn_says_so_and_refuses_to() -> None:
    for learns in (True, False):
        async with target(ToyRunner(TABLE), learn=learns) as served:
            model = (await served.stub.GetTargetInfo(target_pb2.GetTargetInfoRequest())).model
            assert model.default_learn is learns
            wanted = message([1], 5, speculation=speculation(learn=False))
            assert len((await collect(served.stub.Decode(wanted)))[0]) == 5
            call = collect(served.stub.Decode(message([1], 5, speculation=speculation(learn=True))))
            if learns:
                assert len((await call)[0]) == 5
                continue
            with pytest.raises(grpc.aio.AioRpcError, match=r"speculation\.learn: got True, allowed: false") as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unknown_fields_are_refused() -> None:
    async with target(ToyRunner(TABLE)) as served:
        decode = served.channel.unary_stream(
            "/paceline.v1.TargetService/Decode", response_deserializer=target_pb2.DecodeResponse.FromString
        )
        with pytest.raises(grpc.aio.AioRpcError, match="field 99"):
            await collect(decode(message([1], 5).SerializeToString() + b"\x9a\x06\x01x"))


async def test_info_and_status() -> None:
    async with target(ToyRunner(TABLE, eos=frozenset({3, 7}), context_length=99)) as served:
        model = (await served.stub.GetTargetInfo(target_pb2.GetTargetInfoRequest())).model
        assert (model.model, model.vocab_size, model.context_length) == ("toy", VOCAB, 99)
        assert list(model.eos_token_ids) == [3, 7]
        assert (model.default_budget, model.max_budget, model.proposer) == (64, 64, "")
        assert model.default_auto_budget
        assert model.tokenizer_fingerprint
        tokens, _ = await collect(served.stub.Decode(message([1], 10, ignore_eos=True)))
        status = await served.status()
        assert (status.emitted, status.passes, status.drafter_state) == (10, 10, "absent")
        assert (status.address, status.incarnation) == (served.address, served.server.incarnation)
        assert len(tokens) == 10


def blocked(gate: threading.Event, held: threading.Event):
    def before(plan: object) -> None:
        held.set()
        assert gate.wait(PATIENCE_S)

    return before


async def test_overload_names_the_limit() -> None:
    gate, held = threading.Event(), threading.Event()
    runner = ToyRunner(TABLE, before_execute=blocked(gate, held))
    async with target(runner, max_sessions=1, max_queue=1) as served:
        calls = [asyncio.create_task(collect(served.stub.Decode(message([k], 5)))) for k in range(2)]
        await until(served_count(served), 2)
        with pytest.raises(grpc.aio.AioRpcError, match="max_sessions 1, max_queue 1") as raised:
            await collect(served.stub.Decode(message([9], 5)))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        gate.set()
        for call in calls:
            assert len((await call)[0]) == 5


def served_count(served):
    async def count() -> int:
        status = await served.status()
        return status.active_sessions + status.queued_sessions

    return count


@pytest.mark.parametrize("stage", ["reading", "queued", "streaming"])
async def test_a_client_that_leaves_frees_its_place(stage: str) -> None:
    gate, held = threading.Event(), threading.Event()
    if stage == "streaming":
        gate.set()
    runner = ToyRunner(TABLE, before_execute=blocked(gate, held))
    async with target(runner, max_sessions=1) as served:
        call = served.stub.Decode(message([1], 4000))
        if stage == "streaming":
            await call.read()
            await call.read()
        else:
            await until(served_count(served), 1)
        if stage == "queued":
            second = served.stub.Decode(message([2], 4000))
            await until(served_count(served), 2)
            second.cancel()
            await until(served_count(served), 2 if not gate.is_set() else 0)
        call.cancel()
        gate.set()
        await served.idle()
        assert len((await collect(served.stub.Decode(message([3], 5))))[0]) == 5


async def test_deadlines() -> None:
    """One that passes while the engine works, one that has passed: no pass runs for it."""
    gate, held = threading.Event(), threading.Event()
    async with target(ToyRunner(TABLE, before_execute=blocked(gate, held))) as served:
        call = asyncio.create_task(collect(served.stub.Decode(message([1], 4000), timeout=0.3)))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        gate.set()
        await served.idle()
        passes = (await served.status()).passes
        assert passes <= 1
        servicer = TargetServicer(
            served.server.engine,
            RequestLimits(VOCAB, 64, "", 8),
            StatusReport(None, served.server.engine, None),  # type: ignore[arg-type]
            outbox=LoopOutbox(asyncio.get_running_loop()),
            max_unread_tokens=8,
        )
        with pytest.raises(Aborted, match="DEADLINE_EXCEEDED"):
            async for _ in servicer.Decode(message([1], 5), Expired()):  # type: ignore[arg-type]
                pass
        assert (await served.status()).passes == passes


class Aborted(Exception):
    pass


class Expired:
    """The context of a call whose deadline has passed."""

    def time_remaining(self) -> float:
        return 0.0

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(f"{code.name}: {details}")


async def test_a_reader_that_does_not_read_holds_up_nobody() -> None:
    async with target(ToyRunner(TABLE), max_unread_tokens=32) as served:
        slow = served.stub.Decode(message([1], 3000))
        await slow.read()
        assert len((await collect(served.stub.Decode(message([2], 500))))[0]) == 500
        slow.cancel()
        await served.idle()


async def test_a_lost_engine_is_not_serving_and_refuses_at_once() -> None:
    def before(plan: object) -> None:
        raise RuntimeError("device-side assert")

    async with target(ToyRunner(TABLE, before_execute=before)) as served:
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(served.stub.Decode(message([1], 5)))
        health = health_pb2_grpc.HealthStub(served.channel)

        async def state() -> int:
            return (await health.Check(health_pb2.HealthCheckRequest())).status

        await until(state, health_pb2.HealthCheckResponse.NOT_SERVING)
        with pytest.raises(Unavailable, match="lost"):
            served.server.healthy()
        with pytest.raises(grpc.aio.AioRpcError, match="lost") as raised:
            await collect(served.stub.Decode(message([1], 5)))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        served.server._runner.kv._sequences.clear()  # the books of a lost engine are nobody's concern
        served.server._runner.kv._owners[:] = 0


async def test_a_blocked_pass_does_not_block_the_loop() -> None:
    gate, held = threading.Event(), threading.Event()
    async with target(ToyRunner(TABLE, before_execute=blocked(gate, held)), stall_s=0.2) as served:
        call = asyncio.create_task(collect(served.stub.Decode(message([1], 5))))
        assert await asyncio.to_thread(held.wait, PATIENCE_S)
        async with asyncio.timeout(5):
            await served.status()

        async def healthy() -> bool:
            try:
                served.server.healthy()
            except Unavailable:
                return False
            return True

        await until(healthy, False)
        gate.set()
        await call
        await until(healthy, True)


async def test_a_taken_port_is_named_and_nothing_is_left() -> None:
    threads = threading.active_count()
    async with target(ToyRunner(TABLE)) as served:
        port = int(served.address.rsplit(":", 1)[1])
        second = TargetServer(TargetConfig(port=port), Directory(), ToyRunner(TABLE), ToyTokenizer.numbered(VOCAB))
        with pytest.raises(Unavailable, match=str(port)):
            await second.start()
        with pytest.raises(Unavailable):
            second.healthy()
        assert len((await collect(served.stub.Decode(message([1], 5))))[0]) == 5
    assert threading.active_count() <= threads + 2


async def test_stop_lets_streams_end_within_the_grace() -> None:
    runner = ToyRunner(TABLE)
    server = TargetServer(TargetConfig(), None, runner, ToyTokenizer.numbered(VOCAB))
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        decode = channel.unary_stream(
            "/paceline.v1.TargetService/Decode",
            request_serializer=target_pb2.DecodeRequest.SerializeToString,
            response_deserializer=target_pb2.DecodeResponse.FromString,
        )
        call = decode(message([1], 2000))
        tokens = np.frombuffer((await call.read()).tokens, dtype="<i4").tolist()
        stopping = asyncio.create_task(server.stop(20.0))
        while (response := await call.read()) is not grpc.aio.EOF:
            tokens += np.frombuffer(response.tokens, dtype="<i4").tolist()
        assert len(tokens) == 2000
        await stopping
