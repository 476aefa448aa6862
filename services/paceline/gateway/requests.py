"""A client's request: every field checked, every default filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField, ModelNotFound, UnsupportedField
from paceline.gateway.config import GatewayConfig
from paceline.gateway.prompt import check_prompt
from paceline.gateway.speculation import speculation
from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.convert import check_sampling, sampling_from_proto, sampling_to_proto
from paceline.rpc.unknown_fields import refuse_unknown
from paceline.speculation.sampling import SamplingParams
from paceline.v1 import common_pb2, inference_pb2, target_pb2

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256

# Fields of the proto that no version serves yet, whatever their value.
REFUSED = (
    "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "min_tokens",
    "json_schema",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A request that can be decoded as it is."""

    decode: target_pb2.DecodeRequest  # without choice, delivered tokens, what they cost, and request id
    choices: int  # replies
    prompt_tokens: int
    stops: tuple[str, ...]
    eos_token_ids: frozenset[int]  # tokens that end the reply; empty where the request ignores them
    seed: int
    model: str


def choices(request: inference_pb2.GenerateRequest) -> int:
    """Replies asked for; in range once `check_shape` has passed."""
    return request.n if request.HasField("n") else 1


def check_shape(request: inference_pb2.GenerateRequest, config: GatewayConfig) -> None:
    """Everything that can be checked without knowing the model. Raises InvalidField or UnsupportedField."""
    refuse_unknown(request)
    present = {descriptor.name for descriptor, _ in request.ListFields()}
    for field in REFUSED:
        if field in present:
            raise UnsupportedField(field)
    limit, setting = config.choices_limit
    if not 1 <= choices(request) <= limit:
        raise InvalidField("n", request.n, f"1 to {limit} ({setting})", "Leave it out for one reply.")
    if request.HasField("deadline_ms") and request.deadline_ms == 0:
        raise InvalidField("deadline_ms", 0, "1 to 4294967295", "Leave it out for no deadline.")
    check_prompt(request, config.max_prompt_bytes)
    _check_stops(request.stop)


def resolve(
    request: inference_pb2.GenerateRequest,
    prompt: NDArray[np.int32],
    model: inference_pb2.GetModelInfoResponse,
    draw_seed: Callable[[], int],
) -> Resolved:
    """The request for a target that serves `model`, given its tokens. `check_shape` comes first, `check_model` too.

    Raises InvalidField naming field, value and range.
    """
    sampling = _sampling(request.sampling, model, draw_seed)
    room = model.context_length - len(prompt)
    if request.HasField("max_tokens") and not 1 <= request.max_tokens <= model.context_length:
        allowed = f"1 to {model.context_length} (context_length)"
        raise InvalidField("max_tokens", request.max_tokens, allowed, "Leave it out to fill the context.")
    max_tokens = min(request.max_tokens, room) if request.HasField("max_tokens") else room
    decode = target_pb2.DecodeRequest(
        prompt_tokens=ints_to_bytes(prompt),
        sampling=sampling_to_proto(sampling),
        max_tokens=max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        speculation=speculation(request.speculation, sampling, model),
        trace=request.trace,
    )
    return Resolved(
        decode=decode,
        choices=choices(request),
        prompt_tokens=len(prompt),
        stops=tuple(request.stop),
        eos_token_ids=frozenset() if request.ignore_eos else frozenset(model.eos_token_ids),
        seed=sampling.seed,
        model=model.model,
    )


def check_model(request: inference_pb2.GenerateRequest, model: inference_pb2.GetModelInfoResponse) -> None:
    """Raises ModelNotFound if the request wants another model."""
    if request.model and request.model != model.model:
        raise ModelNotFound(
            f"model: got {request.model[:80]!r}, served: {model.model!r}. Leave it empty to accept any model."
        )


def _check_stops(stops: object) -> None:
    strings = list(stops)  # type: ignore[call-overload]
    if len(strings) > MAX_STOPS:
        raise InvalidField("stop", f"{len(strings)} strings", f"at most {MAX_STOPS} strings")
    for index, stop in enumerate(strings):
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidField(f"stop[{index}]", stop, f"1 to {MAX_STOP_CHARACTERS} characters")


def _sampling(
    asked: common_pb2.SamplingParams, model: inference_pb2.GetModelInfoResponse, draw_seed: Callable[[], int]
) -> SamplingParams:
    merged = sampling_to_proto(sampling_from_proto(model.default_sampling), with_seed=False)
    merged.MergeFrom(asked)
    if not asked.HasField("seed"):
        merged.seed = draw_seed()
    params = sampling_from_proto(merged)
    check_sampling(params, model.vocab_size)
    return params
