"""What comes back, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paceline.v1 import common_pb2, inference_pb2
from paceline_client.errors import ServerFault
from paceline_client.rounds import RoundTrace, round_of


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply."""

    token_ids: tuple[int, ...]  # may run ahead of the text while a character or a stop string is incomplete
    text: str
    rounds: tuple[RoundTrace, ...] = ()  # that gave these tokens; only with trace=True
    index: int = 0  # of the reply it belongs to, 0 to n - 1


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply."""

    prompt_tokens: int  # after the chat template; the same for all replies of a request, and once in a sum
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafting did for a reply."""

    rounds: int  # target passes that emitted tokens
    drafted: int  # draft nodes verified
    accepted: int  # draft tokens delivered
    fallbacks: Mapping[str, int]  # rounds decoded plainly although a tree was wanted, by reason
    relaxed_tokens: int = 0  # draft tokens delivered that only the nucleus rule accepted, whatever replica sent them
    deviation_spent: float = 0.0  # its expectation bounds the total variation from the exact law; one value bounds none
    limits_applied: Mapping[str, int] = field(default_factory=dict)  # nodes where a limit kept relaxing off, by limit
    selections: Mapping[str, int] = field(default_factory=dict)  # rounds by selection rule
    row_passes: int = 0  # rows computed, retained or found for selection
    row_cache_hits: int = 0  # rows taken from the row cache
    tokens_held_back: int = 0  # drawn tokens that `retain` did not emit
    verification: str = "exact"  # or "nucleus"
    strength: float = 0.0  # coupling strength of the draft trees; 0 where there were none, or not coupled ones
    budgets: Mapping[int, int] = field(default_factory=dict)  # rounds by draft nodes asked for, where the server chose


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
    seed: int  # repeats the reply, and all others of its request
    model: str
    index: int = 0  # of the reply, 0 to n - 1


Event = Delta | Finish


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    rounds: tuple[RoundTrace, ...] = ()  # only with trace=True


class Replies:
    """Puts together the replies of one stream."""

    def __init__(self) -> None:
        self._deltas: dict[int, list[Delta]] = {}  # by index

    def add(self, event: Event) -> Reply | None:
        """Takes the next event; the whole reply where it is one's end."""
        deltas = self._deltas.setdefault(event.index, [])
        if isinstance(event, Delta):
            deltas.append(event)
            return None
        return Reply(
            "".join(delta.text for delta in deltas),
            tuple(token for delta in deltas for token in delta.token_ids),
            event,
            tuple(trace for delta in deltas for trace in delta.rounds),
        )


def event_of(response: inference_pb2.GenerateResponse) -> Event | None:
    """A message of the stream as a value; None for kinds that this client does not know."""
    kind = response.WhichOneof("event")
    if kind == "delta":
        delta = response.delta
        rounds = tuple(round_of(trace) for trace in delta.rounds)
        return Delta(tuple(delta.token_ids), delta.text, rounds, delta.index)
    return finish_of(response.finish) if kind == "finish" else None


def finish_of(finish: inference_pb2.Finish) -> Finish:
    """The end of a reply as a value. Raises ServerFault if it names no reason that this client knows."""
    reasons: dict[int, Literal["stop", "length"]] = {
        common_pb2.FINISH_REASON_STOP: "stop",
        common_pb2.FINISH_REASON_LENGTH: "length",
    }
    if finish.reason not in reasons:
        raise ServerFault(f"the reply ended for reason {finish.reason}, which this client does not know; upgrade it")
    return Finish(
        reason=reasons[finish.reason],
        stop_match=finish.stop_match,
        usage=Usage(finish.usage.prompt_tokens, finish.usage.completion_tokens),
        speculation=speculation_of(finish.speculation),
        timings=Timings(finish.timings.ttft_s, finish.timings.total_s),
        seed=finish.seed,
        model=finish.model,
        index=finish.index,
    )


def speculation_of(stats: common_pb2.SpeculationStats) -> Speculation:
    """The statistics as a value."""
    return Speculation(
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        fallbacks=dict(stats.fallbacks),
        relaxed_tokens=stats.relaxed_tokens,
        deviation_spent=stats.deviation_spent,
        limits_applied=dict(stats.limits_applied),
        selections=dict(stats.selections),
        row_passes=stats.row_passes,
        row_cache_hits=stats.row_cache_hits,
        tokens_held_back=stats.tokens_held_back,
        verification=stats.verification or "exact",
        strength=stats.strength,
        budgets=dict(stats.budgets),
    )
