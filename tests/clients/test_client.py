"""The client: typed replies and errors, retries before the first token, both forms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.rig import STOP, Step, finish, gateway, says, until, within
from paceline.rpc.server import DataPlaneServer
from paceline.v1 import common_pb2, inference_pb2, inference_pb2_grpc, target_pb2
from paceline_client import (
    AsyncClient,
    Chat,
    Client,
    ClientError,
    DeadlineExceeded,
    Delta,
    Finish,
    InvalidRequest,
    Message,
    NotAllowed,
    NotFound,
    Nucleus,
    Overloaded,
    RetryPolicy,
    ServerFault,
    Tokens,
    Unavailable,
)
from paceline_client.errors import from_status
from paceline_client.modes import MODES
from paceline_client.request import request_of

Code = grpc.StatusCode
QUICK = RetryPolicy(attempts=3, first_pause_s=0.001)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (Code.INVALID_ARGUMENT, InvalidRequest, False),
        (Code.OUT_OF_RANGE, InvalidRequest, False),
        (Code.FAILED_PRECONDITION, InvalidRequest, False),
        (Code.UNIMPLEMENTED, InvalidRequest, False),
        (Code.NOT_FOUND, NotFound, False),
        (Code.UNAUTHENTICATED, NotAllowed, False),
        (Code.PERMISSION_DENIED, NotAllowed, False),
        (Code.RESOURCE_EXHAUSTED, Overloaded, True),
        (Code.UNAVAILABLE, Unavailable, True),
        (Code.DEADLINE_EXCEEDED, DeadlineExceeded, False),
        (Code.INTERNAL, ServerFault, False),
        (Code.UNKNOWN, ServerFault, False),
        (Code.DATA_LOSS, ServerFault, False),
        (Code.ABORTED, ServerFault, False),
        (Code.CANCELLED, ServerFault, False),
        (Code.ALREADY_EXISTS, ServerFault, False),
    ],
)
def test_each_status_is_one_type(code: grpc.StatusCode, kind: type[ClientError], retryable: bool) -> None:
    error = from_status(code, "why")
    assert type(error) is kind
    assert (error.code, str(error), error.retryable) == (code, "why", retryable)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (Code.UNAVAILABLE, "Connection reset by peer"),
        (Code.INTERNAL, "The actor died unexpectedly before finishing this task. pid=12 ip=10.0.0.3"),
        (Code.CANCELLED, "RST_STREAM error code 8"),
        (Code.INTERNAL, "Received RST_STREAM with error code 2"),
    ],
)
def test_a_replica_that_died_is_retryable_only_before_the_first_token(code: grpc.StatusCode, details: str) -> None:
    assert isinstance(from_status(code, details), Unavailable)
    assert from_status(code, details).retryable
    assert not from_status(code, details, delivered=True).retryable
    assert "10.0.0.3" not in str(from_status(code, details))


def test_a_message_over_the_limit_is_no_overload() -> None:
    error = from_status(Code.RESOURCE_EXHAUSTED, "Received message larger than max (68157446 vs. 67108864)")
    assert isinstance(error, InvalidRequest)
    assert not error.retryable


# -- requests ----------------------------------------------------------------------------------------------------------


def test_absent_fields_stay_absent_and_zero_is_a_value() -> None:
    assert request_of("x", {}) == inference_pb2.GenerateRequest(text="x")
    request = request_of("x", {"temperature": 0.0, "top_k": 0, "top_p": 0.0, "seed": 0, "budget": 0, "draft": False})
    assert request.sampling == common_pb2.SamplingParams(temperature=0, top_k=0, top_p=0, seed=0)
    assert request.speculation == common_pb2.SpeculationParams(draft=False, budget=0)
    assert not request.HasField("max_tokens")
    assert request_of("x", {"budget": "auto"}).speculation == common_pb2.SpeculationParams(auto_budget=True)
    for wrong in ("some", 2.5, -1):
        with pytest.raises(InvalidRequest, match=r"budget: got .*, allowed: auto, or a whole number"):
            request_of("x", {"budget": wrong})  # type: ignore[typeddict-item]


def test_every_form_of_prompt_and_every_field() -> None:
    chat = request_of(Chat([Message("system", "be brief"), Message("user", "hi")]), {})
    assert [(turn.role, turn.content) for turn in chat.chat.messages] == [("system", "be brief"), ("user", "hi")]
    assert Chat.user("hi", "be brief") == Chat((Message("system", "be brief"), Message("user", "hi")))
    assert list(request_of(Tokens([1, 2]), {}).tokens.token_ids) == [1, 2]
    assert request_of(Tokens([]), {}).WhichOneof("input") == "tokens"
    assert request_of("", {}).WhichOneof("input") == "text"
    request = request_of(
        "x",
        {
            "max_tokens": 5,
            "stop": ["a", "b"],
            "ignore_eos": True,
            "proposal": "coupled",
            "strength": 2.5,
            "model": "m",
            "learn": True,
        },
    )
    assert request == inference_pb2.GenerateRequest(
        text="x",
        max_tokens=5,
        stop=["a", "b"],
        ignore_eos=True,
        model="m",
        speculation=common_pb2.SpeculationParams(proposal=common_pb2.PROPOSAL_COUPLED, strength=2.5, learn=True),
    )


def test_modes_and_nucleus_have_their_places_on_the_wire() -> None:
    request = request_of(
        "x",
        {
            "proposal": "sampled",
            "selection": "draw_first",
            "wait": "deadline",
            "draft_deadline_ms": 25,
            "nucleus": Nucleus(0.9, 0.5, 1.5, 0.25, 3),
            "trace": True,
        },
    )
    assert request.trace
    assert request.speculation == common_pb2.SpeculationParams(
        proposal=common_pb2.PROPOSAL_SAMPLED,
        selection=common_pb2.SELECTION_RULE_DRAW_FIRST,
        wait=common_pb2.WAIT_MODE_DEADLINE,
        deadline_ms=25,
        nucleus=common_pb2.NucleusVerification(
            mass=0.9, temperature=0.5, max_deviation=1.5, max_deviation_per_token=0.25, max_relaxations=3
        ),
    )
    zeros = request_of("x", {"nucleus": Nucleus(0, max_deviation=0, max_relaxations=0), "trace": False}).speculation
    assert zeros.nucleus == common_pb2.NucleusVerification(mass=0, max_deviation=0, max_relaxations=0)
    assert not zeros.nucleus.HasField("max_deviation_per_token")
    assert request_of("x", {"nucleus": None, "selection": None, "wait": None, "trace": None}) == request_of("x", {})


@pytest.mark.parametrize(
    ("enum", "words"),
    [
        (common_pb2.Proposal, MODES["proposal"]),
        (common_pb2.SelectionRule, MODES["selection"]),
        (common_pb2.WaitMode, MODES["wait"]),
    ],
)
def test_every_mode_of_the_proto_has_a_word(enum: Any, words: dict[str, int]) -> None:
    assert set(words.values()) == set(enum.values()) - {0}
    assert all(enum.Name(number).endswith(f"_{word.upper()}") for word, number in words.items())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"stop": "END"}, "stop"),
        ({"stop": [1]}, r"stop\[0\]"),
        ({"proposal": "lucky"}, "proposal: got 'lucky', allowed: ranked, coupled, sampled"),
        ({"proposal": 1}, "proposal: got 1, allowed: ranked"),
        ({"selection": "best"}, "selection: got 'best', allowed: auto, draft, retain, rerank, draw_first"),
        ({"wait": ["tree"]}, r"wait: got \['tree'\], allowed: tree, deadline, never"),
        ({"draft_deadline_ms": -1}, "draft_deadline_ms: got -1, allowed: a whole number, 1 to 60000"),
        ({"draft_deadline_ms": 2.5}, "draft_deadline_ms: got 2.5, allowed: a whole number, 1 to 60000"),
        ({"nucleus": 0.9}, "nucleus: got 0.9, allowed: a Nucleus, or None for exact"),
        ({"nucleus": Nucleus(None)}, r"nucleus.mass: got None, allowed: 0 \(the exact rule\) to 1"),
        ({"nucleus": Nucleus("all")}, "nucleus.mass: got 'all', allowed: 0"),
        ({"nucleus": Nucleus(1, "hot")}, "nucleus.temperature: got 'hot', allowed: 0.01 to 1e6"),
        ({"nucleus": Nucleus(1, max_deviation="x")}, "nucleus.max_deviation: got 'x', allowed: 0 or more"),
        (
            {"nucleus": Nucleus(1, max_deviation_per_token="x")},
            "nucleus.max_deviation_per_token: got 'x', allowed: 0 or more",
        ),
        (
            {"nucleus": Nucleus(1, max_relaxations=-1)},
            "nucleus.max_relaxations: got -1, allowed: a whole number, 0 to 4294967295",
        ),
        ({"trace": "yes"}, "trace: got 'yes'"),
        ({"temprature": 1.0}, "temprature.*temperature"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        request_of("x", fields)  # type: ignore[arg-type]


def test_a_prompt_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="bytes"):
        request_of(b"x", {})  # type: ignore[arg-type]


# -- retries -----------------------------------------------------------------------------------------------------------


class Flaky(inference_pb2_grpc.InferenceServiceServicer):
    """Fails as told, then answers."""

    def __init__(self, *failures: tuple[grpc.StatusCode, str, int]) -> None:
        self.failures = list(failures)  # (status, details, deltas before it)
        self.calls = 0
        self.deadlines: list[int] = []
        self.metadata: list[dict[str, str]] = []

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> None:  # noqa: N802
        await self.answer(request, context)
        await context.write(inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text="a", token_ids=[1])))
        done = inference_pb2.Finish(reason=common_pb2.FINISH_REASON_STOP)
        await context.write(inference_pb2.GenerateResponse(finish=done))

    async def GetStatus(self, request: Any, context: Any) -> inference_pb2.GetStatusResponse:  # noqa: N802
        await self.answer(request, context)
        return inference_pb2.GetStatusResponse(gateway_requests=3)

    async def answer(self, request: Any, context: Any) -> None:
        self.calls += 1
        self.deadlines.append(getattr(request, "deadline_ms", 0))
        self.metadata.append(dict(context.invocation_metadata()))
        if self.failures:
            code, details, deltas = self.failures.pop(0)
            for _ in range(deltas):
                await context.write(inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text="b")))
            await context.abort(code, details)


@asynccontextmanager
async def flaky(
    *failures: tuple[grpc.StatusCode, str, int], **options: Any
) -> AsyncIterator[tuple[Flaky, AsyncClient]]:
    service = Flaky(*failures)

    def add(server: grpc.aio.Server) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server)

    server = DataPlaneServer(("paceline.v1.InferenceService",), add, host="127.0.0.1", port=0)
    address = await server.start()
    try:
        async with AsyncClient(address, **{"retry": QUICK, **options}) as client:
            yield service, client
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    "failure",
    [
        (Code.UNAVAILABLE, "gone", 0),
        (Code.INTERNAL, "The actor died unexpectedly before finishing this task.", 0),
        (Code.INTERNAL, "RST_STREAM with error code 2", 0),
    ],
)
async def test_a_lost_call_is_tried_again_before_the_first_token(failure: tuple[grpc.StatusCode, str, int]) -> None:
    async with flaky(failure, failure) as (service, client):
        assert (await within(client.complete("x"))).text == "a"
        assert service.calls == 3
    async with flaky(failure, failure) as (service, client):
        assert (await within(client.status())).gateway_requests == 3
        assert service.calls == 3


async def test_tries_are_bounded() -> None:
    async with flaky(*[(Code.UNAVAILABLE, "gone", 0)] * 5) as (service, client):
        with pytest.raises(Unavailable, match=r"no answer from .*gone"):
            await within(client.complete("x"))
        assert service.calls == 3
    async with flaky((Code.UNAVAILABLE, "gone", 0), retry=RetryPolicy(attempts=1)) as (service, client):
        with pytest.raises(Unavailable):
            await within(client.complete("x"))
        assert service.calls == 1


async def test_nothing_is_tried_again_after_the_first_token() -> None:
    async with flaky((Code.UNAVAILABLE, "gone", 1)) as (service, client):
        stream = client.generate("x")
        assert await within(anext(stream)) == Delta((), "b")
        with pytest.raises(Unavailable) as lost:
            await within(anext(stream))
        assert service.calls == 1
        assert not lost.value.retryable


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.NOT_FOUND])
async def test_other_errors_are_not_tried_again(code: grpc.StatusCode) -> None:
    async with flaky((code, "no", 0)) as (service, client):
        with pytest.raises(ClientError):
            await within(client.complete("x"))
        assert service.calls == 1


async def test_the_deadline_shrinks_with_each_try() -> None:
    now = [0.0]
    retry = RetryPolicy(attempts=3, first_pause_s=0.0)
    async with flaky(*[(Code.UNAVAILABLE, "gone", 0)] * 2, retry=retry, clock=lambda: now[0]) as (service, client):
        original = service.answer

        async def slow(request: Any, context: Any) -> None:
            now[0] += 10.0
            await original(request, context)

        service.answer = slow  # type: ignore[method-assign]
        assert (await within(client.complete("x", timeout_s=60.0))).text == "a"
    assert service.deadlines == [60_000, 50_000, 40_000]


async def test_a_deadline_that_passes_between_tries_ends_them() -> None:
    now = [0.0]
    async with flaky(*[(Code.UNAVAILABLE, "gone", 0)] * 2, clock=lambda: now[0]) as (service, client):
        original = service.answer

        async def slow(request: Any, context: Any) -> None:
            now[0] += 100.0
            await original(request, context)

        service.answer = slow  # type: ignore[method-assign]
        with pytest.raises(DeadlineExceeded, match="60 s"):
            await within(client.complete("x", timeout_s=60.0))
        assert service.calls == 1


async def test_the_application_is_named_to_the_ingress() -> None:
    async with flaky(application="paceline") as (service, client):
        await within(client.complete("x"))
        await within(client.status())
    assert [metadata.get("application") for metadata in service.metadata] == ["paceline", "paceline"]


async def test_nobody_there_is_said_with_the_address() -> None:
    async with AsyncClient("127.0.0.1:1", retry=QUICK) as client:
        with pytest.raises(Unavailable, match=r"no answer from 127\.0\.0\.1:1"):
            await within(client.complete("x"))


async def test_a_stream_without_a_finish_is_a_fault() -> None:
    class Short(Flaky):
        async def Generate(self, request: Any, context: Any) -> None:  # noqa: N802
            await context.write(inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text="a")))

    service = Short()
    server = DataPlaneServer(
        (), lambda server: inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server),
        host="127.0.0.1", port=0,
    )  # fmt: skip
    try:
        async with AsyncClient(await server.start()) as client:
            with pytest.raises(ServerFault, match="without a finish"):
                await within(client.complete("x"))
    finally:
        await server.stop(0)


# -- both forms --------------------------------------------------------------------------------------------------------


async def test_a_reply_as_values() -> None:
    end = finish(STOP, rounds=2, drafted=8, accepted=1)
    async with gateway(says([104, 105], 2, end)) as served:
        events = [event async for event in served.client.generate("xyz", seed=9)]
    assert events[0] == Delta((104, 105), "hi")
    done = events[1]
    assert isinstance(done, Finish)
    assert (done.reason, done.stop_match, done.seed, done.model) == ("stop", "", 9, "fake")
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 2)
    assert (done.speculation.rounds, done.speculation.drafted, done.speculation.accepted) == (2, 8, 1)
    assert 0 < done.timings.ttft_s <= done.timings.total_s


async def in_thread(work: Any, *arguments: Any) -> Any:
    """Runs synchronous code while the server goes on in this loop."""
    return await within(asyncio.to_thread(work, *arguments))


async def test_the_synchronous_form_answers_alike() -> None:
    def own_threads() -> list[str]:  # by name: other libraries start threads of theirs at any time
        return [thread.name for thread in threading.enumerate() if thread.name == "paceline-client"]

    def work(address: str) -> None:
        with Client(address) as client:
            assert own_threads() == ["paceline-client"]
            assert [type(event) for event in client.generate("x")] == [Delta, Delta, Finish]
            assert client.complete("x").text == "hi"
            assert client.get_model_info().model == "fake"
            assert len(client.status().targets) == 1
            with pytest.raises(InvalidRequest):
                client.complete("")
            assert client.complete("x").text == "hi", "an error leaves the client usable"
        with pytest.raises(ClientError, match="closed"):
            client.complete("x")
        client.close()

    async with gateway(says([104, 105])) as served:
        await in_thread(work, served.address)
    await until(lambda: not own_threads())


async def test_closing_a_synchronous_stream_frees_the_server() -> None:
    async def endless(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield [97]
        await asyncio.Event().wait()

    def work(address: str) -> None:
        with Client(address) as client:
            with client.generate("x") as stream:
                assert next(stream) == Delta((97,), "a")
            assert next(stream, None) is None, "a closed stream has ended"

    async with gateway(endless) as served:
        await in_thread(work, served.address)
        await within(served.targets[0].cancelled.wait())


async def test_several_threads_share_a_synchronous_client() -> None:
    def work(address: str) -> list[str]:
        with Client(address) as client:
            texts: list[str] = []
            threads = [threading.Thread(target=lambda: texts.append(client.complete("x").text)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return texts

    async with gateway(says([104, 105])) as served:
        assert await in_thread(work, served.address) == ["hi"] * 8


@pytest.mark.parametrize("begun", [False, True])
async def test_an_interruption_while_a_call_begins_leaves_nothing_running(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C right before, or right after, the call was handed to the client's loop."""

    async def endless(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield [97]
        await asyncio.Event().wait()

    def work(address: str) -> None:
        with Client(address) as client:
            stream = client.generate("x")
            assert next(stream) == Delta((97,), "a")
            hand_over = client._loop.call_soon_threadsafe

            def interrupted(work: Any) -> None:
                monkeypatch.setattr(client._loop, "call_soon_threadsafe", hand_over)
                if begun:
                    hand_over(work)
                raise KeyboardInterrupt

            monkeypatch.setattr(client._loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
            assert len(client.status().targets) == 1, "the client goes on"

    async with gateway(endless) as served:
        await in_thread(work, served.address)
        await within(served.targets[0].cancelled.wait())
