"""What comes back, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.v1 import common_pb2, inference_pb2
from paceline_client.errors import ServerFault


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply."""

    token_ids: tuple[int, ...]  # may run ahead of the text while a character or a stop string is incomplete
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int  # after the chat template
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafting did for a reply."""

    rounds: int  # target passes that emitted tokens
    drafted: int  # draft nodes verified
    accepted: int  # draft tokens delivered
    fallbacks: Mapping[str, int]  # rounds decoded plainly although a tree was wanted, by reason


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations measured at the gateway, seconds from accepting the request."""

    ttft_s: float  # to the first token
    total_s: float  # to the last token


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a reply."""

    reason: Literal["stop", "length"]
    stop_match: str  # the stop string that matched, or ""
    usage: Usage
    speculation: Speculation
    timings: Timings
    seed: int  # repeats the reply
    model: str


Event = Delta | Finish


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish


def event_of(response: inference_pb2.GenerateResponse) -> Event | None:
    """A message of the stream as a value; None for kinds that this client does not know."""
    kind = response.WhichOneof("event")
    if kind == "delta":
        return Delta(tuple(response.delta.token_ids), response.delta.text)
    return finish_of(response.finish) if kind == "finish" else None


def finish_of(finish: inference_pb2.Finish) -> Finish:
    """The end of a reply as a value. Raises ServerFault if it names no reason that this client knows."""
    reasons: dict[int, Literal["stop", "length"]] = {
        common_pb2.FINISH_REASON_STOP: "stop",
        common_pb2.FINISH_REASON_LENGTH: "length",
    }
    if finish.reason not in reasons:
        raise ServerFault(f"the reply ended for reason {finish.reason}, which this client does not know; upgrade it")
    stats = finish.speculation
    return Finish(
        reason=reasons[finish.reason],
        stop_match=finish.stop_match,
        usage=Usage(finish.usage.prompt_tokens, finish.usage.completion_tokens),
        speculation=Speculation(stats.rounds, stats.drafted, stats.accepted, dict(stats.fallbacks)),
        timings=Timings(finish.timings.ttft_s, finish.timings.total_s),
        seed=finish.seed,
        model=finish.model,
    )
