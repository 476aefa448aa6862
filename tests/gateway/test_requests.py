"""Every field of a request: checked, refused by name, or passed on with every default filled in (B5, B8, D2, D6)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from gateway.rig import Script, Step, gateway, model, says, within
from paceline.errors import InvalidField, ModelNotFound, PacelineError, UnsupportedField
from paceline.gateway.config import GatewayConfig
from paceline.gateway.requests import REFUSED, Resolved, check_model, check_shape, resolve
from paceline.rpc.arrays import bytes_to_ints
from paceline.v1 import common_pb2, inference_pb2, target_pb2
from paceline_client import Chat, Delta, InvalidRequest, Message, NotFound, Tokens

Request = inference_pb2.GenerateRequest
Sampling, Speculation = common_pb2.SamplingParams, common_pb2.SpeculationParams
CONFIG = GatewayConfig(max_prompt_bytes=100)
MODEL = model(context_length=64, vocab_size=50)
RANKED, COUPLED = common_pb2.PROPOSAL_RANKED, common_pb2.PROPOSAL_COUPLED
Turn = inference_pb2.ChatMessage


def chat(*turns: tuple[str, str]) -> inference_pb2.ChatInput:
    return inference_pb2.ChatInput(messages=[Turn(role=role, content=content) for role, content in turns])


def resolved(request: Request, prompt: int = 4, info: Any = MODEL, seed: int = 77) -> Resolved:
    check_shape(request, CONFIG)
    check_model(request, info)
    return resolve(request, np.zeros(prompt, dtype=np.int32), info, lambda: seed)


def ask(**fields: Any) -> Request:
    return Request(text="hi", **fields)


# (request, field named, what else the message says)
WRONG: dict[str, tuple[Request, str, str]] = {
    "no input": (Request(), "input", "exactly one of text, chat, tokens"),
    "empty text": (Request(text=""), "text", "1 to 100 bytes"),
    "long text": (Request(text="ab" * 51), "text", "102 bytes"),
    "long text in bytes": (Request(text="é" * 51), "text", "102 bytes"),
    "no messages": (Request(chat=inference_pb2.ChatInput()), "chat.messages", "at least one"),
    "empty message": (Request(chat=chat(("user", ""))), "chat.messages[0].content", "at least one character"),
    "empty turn": (Request(chat=chat(("user", "a"), ("assistant", ""), ("user", "b"))), "chat.messages[1].content", ""),
    "role": (Request(chat=chat(("tool", "x"))), "chat.messages[0].role", "system, user, assistant"),
    "no role": (Request(chat=chat(("", "x"))), "chat.messages[0].role", "system, user, assistant"),
    "assistant last": (Request(chat=chat(("user", "a"), ("assistant", "b"))), "chat.messages[1].role", "user"),
    "long chat": (Request(chat=chat(("user", "a" * 60), ("user", "b" * 60))), "chat.messages", "120 bytes"),
    "no tokens": (Request(tokens=inference_pb2.TokenInput()), "tokens.token_ids", "at least one"),
    "temperature below 0": (ask(sampling=Sampling(temperature=-1)), "sampling.temperature", "0 to 1e+06"),
    "temperature NaN": (ask(sampling=Sampling(temperature=math.nan)), "sampling.temperature", "nan"),
    "temperature inf": (ask(sampling=Sampling(temperature=math.inf)), "sampling.temperature", "inf"),
    "temperature": (ask(sampling=Sampling(temperature=2e6)), "sampling.temperature", "2000000"),
    "top_k below 0": (ask(sampling=Sampling(top_k=-1)), "sampling.top_k", "0 (all) to 50"),
    "top_k": (ask(sampling=Sampling(top_k=51)), "sampling.top_k", "0 (all) to 50"),
    "top_p": (ask(sampling=Sampling(top_p=1.5)), "sampling.top_p", "0 to 1"),
    "top_p below 0": (ask(sampling=Sampling(top_p=-0.1)), "sampling.top_p", "0 to 1"),
    "top_p NaN": (ask(sampling=Sampling(top_p=math.nan)), "sampling.top_p", "0 to 1"),
    "max_tokens 0": (ask(max_tokens=0), "max_tokens", "1 to 64"),
    "max_tokens below 0": (ask(max_tokens=-1), "max_tokens", "1 to 64"),
    "max_tokens": (ask(max_tokens=10**9), "max_tokens", "1 to 64"),
    "empty stop": (ask(stop=["a", ""]), "stop[1]", "1 to 256 characters"),
    "long stop": (ask(stop=["x" * 257]), "stop[0]", "1 to 256 characters"),
    "stops": (ask(stop=["x"] * 1000), "stop", "at most 16"),
    "budget": (ask(speculation=Speculation(budget=65)), "speculation.budget", "0 to 64"),
    "proposal": (ask(speculation=Speculation(proposal=7)), "speculation.proposal", "ranked"),  # type: ignore[arg-type]
    "coupled, greedy": (ask(speculation=Speculation(proposal=COUPLED)), "speculation.proposal", "temperature 0"),
    "coupled, top_k 1": (
        ask(sampling=Sampling(temperature=1, top_k=1), speculation=Speculation(proposal=COUPLED)),
        "speculation.proposal",
        "top_k 1",
    ),
    "strength, greedy": (ask(speculation=Speculation(strength=2)), "speculation.strength", "ranked"),
    "strength, ranked": (
        ask(sampling=Sampling(temperature=1), speculation=Speculation(proposal=RANKED, strength=2)),
        "speculation.strength",
        "ranked",
    ),
    "strength": (
        ask(sampling=Sampling(temperature=1), speculation=Speculation(strength=0.01)),
        "speculation.strength",
        "0.1 to 1e+06",
    ),
    "strength NaN": (
        ask(sampling=Sampling(temperature=1), speculation=Speculation(strength=math.nan)),
        "speculation.strength",
        "nan",
    ),
    "deadline": (ask(deadline_ms=0), "deadline_ms", "1 to 4294967295"),
    "n 0": (ask(n=0), "n", "1 to 16 (max_choices)"),
    "n below 0": (ask(n=-1), "n", "1 to 16 (max_choices)"),
    "n": (ask(n=17), "n", "1 to 16 (max_choices)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named_with_its_range(name: str) -> None:
    request, field, says_too = WRONG[name]
    with pytest.raises(InvalidField) as refused:
        resolved(request)
    assert refused.value.field == field
    assert says_too in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", 0.5),
        ("min_p", 0.0),
        ("frequency_penalty", 0.5),
        ("presence_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("logit_bias", {3: 1.0}),
        ("logprobs", 0),
        ("min_tokens", 10),
        ("json_schema", "{}"),
    ],
)
def test_what_is_not_built_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(UnsupportedField) as refused:
        resolved(ask(**{field: value}))
    assert field in str(refused.value)


def test_every_field_of_the_proto_is_either_served_or_refused() -> None:
    """A field added to the proto and forgotten here would be ignored in silence."""
    served = {"text", "chat", "tokens", "sampling", "max_tokens", "stop", "ignore_eos", "speculation", "deadline_ms",
              "model", "n", "trace"}  # fmt: skip
    assert {field.name for field in Request.DESCRIPTOR.fields} == served | set(REFUSED)


@pytest.mark.parametrize(
    ("outer", "path"),
    [(b"", "GenerateRequest"), (b"\x22", "sampling"), (b"\x42", "speculation")],
    ids=["request", "sampling", "speculation"],
)
def test_unknown_fields_are_refused_by_number(outer: bytes, path: str) -> None:
    unknown = b"\x98\x06\x01"  # field 99, varint 1
    nested = outer + bytes([len(unknown)]) + unknown if outer else unknown
    with pytest.raises(InvalidField, match=f"{path}: field 99"):
        check_shape(Request.FromString(ask().SerializeToString() + nested), CONFIG)


def test_another_model_is_refused_and_the_served_one_named() -> None:
    with pytest.raises(ModelNotFound, match=r"'big'.*'fake'"):
        resolved(ask(model="big"))
    assert resolved(ask(model="fake")).model == "fake"


def test_absent_fields_take_the_models_defaults() -> None:
    info = model(
        context_length=64,
        default_sampling=Sampling(temperature=0.6, top_k=5, top_p=0.9),
        default_budget=12,
    )
    request = resolved(ask(), info=info, seed=2**64 - 1)
    assert request.decode.sampling == Sampling(temperature=0.6, top_k=5, top_p=0.9, seed=2**64 - 1)
    assert request.decode.speculation == Speculation(
        draft=True,
        budget=12,
        proposal=COUPLED,
        selection=common_pb2.SELECTION_RULE_AUTO,
        wait=common_pb2.WAIT_MODE_DEADLINE,
    )
    assert request.decode.max_tokens == 60
    assert request.seed == 2**64 - 1
    assert request.eos_token_ids == {256}
    assert not resolved(ask(ignore_eos=True), info=info).eos_token_ids


def test_zero_is_a_value_and_not_a_default() -> None:
    info = model(default_sampling=Sampling(temperature=0.6, top_k=5, top_p=0.9))
    given = Sampling(temperature=0, top_k=0, top_p=0, seed=0)
    request = resolved(ask(sampling=given, speculation=Speculation(budget=0)), info=info)
    assert request.decode.sampling == given
    assert request.decode.speculation.budget == 0
    assert request.decode.speculation.proposal == RANKED


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-4, 0.01, 0.8, 100.0, 1e6])
@pytest.mark.parametrize("top_p", [0.0, 1e-8, 1e-3, 1.0])
def test_extreme_values_in_range_reach_the_target_unchanged(temperature: float, top_p: float) -> None:
    request = resolved(ask(sampling=Sampling(temperature=temperature, top_p=top_p, seed=2**63)))
    assert request.decode.sampling == Sampling(temperature=temperature, top_p=top_p, top_k=0, seed=2**63)
    greedy = temperature < 1e-5 or top_p == 0
    assert request.decode.speculation.proposal == (RANKED if greedy else COUPLED)


def test_max_tokens_is_cut_to_the_room_beside_the_prompt() -> None:
    assert resolved(ask(max_tokens=64), prompt=60).decode.max_tokens == 4
    assert resolved(ask(max_tokens=3), prompt=60).decode.max_tokens == 3


def test_replies_are_one_unless_asked_for() -> None:
    assert (resolved(ask()).choices, resolved(ask(n=1)).choices, resolved(ask(n=16)).choices) == (1, 1, 16)


def test_drafts_switched_off_ask_for_none() -> None:
    assert resolved(ask(speculation=Speculation(draft=False, budget=5))).decode.speculation.budget == 0


# -- through the service -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    ["", Tokens([]), Chat([]), Chat([Message("user", "")])],
    ids=["text", "tokens", "no message", "empty message"],
)
async def test_empty_prompts_are_refused_while_another_stream_runs_undisturbed(prompt: Any) -> None:
    gate, script = gated([72, 105, 33])
    async with gateway(script) as served:
        stream = served.client.generate("x")
        first = await within(anext(stream))
        with pytest.raises(InvalidRequest) as refused:
            await within(served.client.complete(prompt))
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        gate()
        rest = [event async for event in stream]
        assert [first, *rest[:-1]] == [Delta((72,), "H"), Delta((105,), "i"), Delta((33,), "!")]
        assert len(served.targets[0].requests) == 1
        gate()
        assert (await within(served.client.complete(" "))).text == "Hi!"


def gated(tokens: list[int]) -> tuple[Any, Script]:
    """A script that stops after its first token until the gate is opened."""
    import asyncio

    opened = asyncio.Event()

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield tokens[:1]
        await opened.wait()
        async for step in says(tokens[1:])(request):
            yield step

    return opened.set, script


async def test_hostile_values_are_refused_before_any_target_works() -> None:
    async with gateway(says([72])) as served:
        generate = served.client.complete
        for prompt, fields, named in [
            (Tokens([256, 257]), {}, "tokens.token_ids[1]: got 257, allowed: 0 to 256"),
            (Tokens([-1]), {}, "tokens.token_ids[0]: got -1"),
            (Tokens([2**40]), {}, "token_ids"),
            ("x", {"seed": 2**64}, "seed"),
            ("x", {"seed": -1}, "seed"),
            ("x", {"max_tokens": -1}, "max_tokens"),
            ("x", {"max_tokens": 10**9}, "max_tokens"),
            ("x", {"max_tokens": 2**40}, "max_tokens"),
            ("x", {"stop": [""]}, "stop[0]"),
            ("x", {"stop": ["s"] * 1000}, "at most 16"),
            ("x", {"budget": 10**6}, "speculation.budget"),
            ("x", {"budget": -1}, "budget"),
            ("\ud83d", {}, "lone surrogate"),
            (Chat.user("\ud83d"), {}, "lone surrogate"),
            ("x", {"stop": ["\ud83d"]}, "lone surrogate"),
            ("x", {"temperature": "hot"}, "temperature"),
            ("x", {"min_p": 0.5}, "min_p"),
        ]:
            with pytest.raises(InvalidRequest) as refused:
                await within(generate(prompt, **fields))
            assert named in str(refused.value)
        assert not served.targets[0].requests
        assert (await within(generate("x", seed=2**63))).finish.seed == 2**63
        assert (await within(generate("nul \0 in the prompt"))).text == "H"
        assert (
            bytes(bytes_to_ints(served.targets[0].requests[-1].prompt_tokens, "p").tolist()) == b"nul \0 in the prompt"
        )


async def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    async with gateway(says([72]), info=model(context_length=64)) as served:
        for prompt in ("x" * 64, "x" * 5000, Tokens([1] * 64), Chat.user("x" * 64)):
            with pytest.raises(InvalidRequest, match=r"at most 63 tokens \(context_length 64"):
                await within(served.client.complete(prompt))
        with pytest.raises(InvalidRequest, match="got '64 tokens'"):
            await within(served.client.complete("x" * 64))
        assert (await within(served.client.complete("x" * 63))).finish.usage.completion_tokens == 1
        assert served.targets[0].requests[0].max_tokens == 1


async def test_text_that_is_no_unicode_on_the_wire_does_not_harm_the_server() -> None:
    async with gateway(says([72])) as served:
        async with grpc.aio.insecure_channel(served.address) as channel:
            method = channel.unary_stream("/paceline.v1.InferenceService/Generate")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await within(method(b"\x0a\x03\xed\xa0\xbd").read())  # field 1: a lone surrogate as UTF-8
        assert refused.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
        assert "Traceback" not in (refused.value.details() or "")
        assert (await within(served.client.complete("x"))).text == "H"


async def test_a_wrong_model_is_not_found() -> None:
    async with gateway(says([72])) as served:
        with pytest.raises(NotFound, match="'fake'"):
            await within(served.client.complete("x", model="other"))


async def test_each_unseeded_request_gets_a_seed_of_its_own_and_reports_it() -> None:
    async with gateway(says([72])) as served:
        seeds = {(await within(served.client.complete("x"))).finish.seed for _ in range(4)}
        assert len(seeds) == 4  # two of four 64-bit seeds agree with odds of 3e-19
        assert {request.sampling.seed for request in served.targets[0].requests} == seeds


def test_errors_are_of_the_one_family() -> None:
    assert issubclass(InvalidField, PacelineError)
    assert issubclass(UnsupportedField, PacelineError)
