"""From a DecodeRequest to a SessionRequest: every field checked, in one place, before the engine sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.rpc.arrays import bytes_to_ints
from paceline.rpc.convert import PROPOSALS, SELECTIONS, WAITS, check_legal, check_sampling, nucleus_from_proto
from paceline.rpc.unknown_fields import refuse_unknown
from paceline.speculation.modes import MAX_DEADLINE_MS, MAX_STRENGTH, MIN_STRENGTH, Proposal, WaitFor
from paceline.speculation.nucleus import Ledger
from paceline.speculation.sampling import SamplingParams
from paceline.target.gains import MOST_NODES
from paceline.target.request import DraftWish, SessionRequest
from paceline.v1 import target_pb2

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256

Number = TypeVar("Number", bound=int)
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What this replica can take."""

    vocab_size: int  # tokens that can be emitted
    context_length: int  # most tokens of prompt and reply together
    context_reason: str  # what sets that limit, in words
    max_budget: int  # draft nodes per round
    learn: bool = True  # whether drafters may learn from replies


def resolve(message: target_pb2.DecodeRequest, limits: RequestLimits, deadline: float | None) -> SessionRequest:
    """The request, resolved. `deadline` is on the engine's clock.

    Raises InvalidField naming the first field that is unknown, missing or out of range.
    """
    refuse_unknown(message)
    prompt = _tokens("prompt_tokens", message.prompt_tokens, limits.vocab_size)
    delivered = _tokens("delivered_tokens", message.delivered_tokens, limits.vocab_size)
    if not len(prompt):
        raise InvalidField("prompt_tokens", "no token", f"1 to {limits.context_length - 1} tokens")
    if len(prompt) >= limits.context_length:
        allowed = f"fewer than the context limit of {limits.context_length} tokens ({limits.context_reason})"
        raise InvalidField("prompt_tokens", f"{len(prompt)} tokens", allowed, "Shorten the prompt.")
    if len(prompt) + len(delivered) > limits.context_length:
        allowed = f"at most {limits.context_length - len(prompt)} beside a prompt of {len(prompt)}"
        raise InvalidField("delivered_tokens", f"{len(delivered)} tokens", allowed)
    if message.max_tokens < 1:
        raise InvalidField("max_tokens", message.max_tokens, "at least 1")
    sampling = _sampling(message, limits.vocab_size)
    nucleus = nucleus_from_proto(message.speculation.nucleus) if message.speculation.HasField("nucleus") else None
    if not (math.isfinite(message.deviation_spent) and message.deviation_spent >= 0):
        raise InvalidField("deviation_spent", message.deviation_spent, "0 or more")
    if message.relaxed_tokens > len(delivered):
        raise InvalidField("relaxed_tokens", message.relaxed_tokens, f"0 to {len(delivered)}, the delivered tokens")
    return SessionRequest(
        prompt=prompt,
        max_tokens=message.max_tokens,
        delivered=delivered,
        sampling=sampling,
        stops=_stops(message),
        ignore_eos=message.ignore_eos,
        wish=_wish(message, sampling, limits.max_budget),
        nucleus=nucleus,
        ledger=Ledger(message.deviation_spent, message.relaxed_tokens),
        learn=_learn(message, limits),
        trace=message.trace,
        request_id=message.request_id,
        deadline=deadline,
    )


def _tokens(field: str, data: bytes, vocab_size: int) -> NDArray[np.int32]:  # [n] int32
    tokens = bytes_to_ints(data, field)
    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(wrong):
        index = int(wrong[0])
        raise InvalidField(f"{field}[{index}]", int(tokens[index]), f"0 to {vocab_size - 1}")
    return tokens


def _sampling(message: target_pb2.DecodeRequest, vocab_size: int) -> SamplingParams:
    for field in ("temperature", "top_k", "top_p", "seed"):
        if not message.sampling.HasField(field):
            raise InvalidField(f"sampling.{field}", "nothing", "a value", "The gateway fills in every default.")
    sampling = SamplingParams(
        temperature=message.sampling.temperature,
        top_k=message.sampling.top_k,
        top_p=message.sampling.top_p,
        seed=message.sampling.seed,
        choice=message.choice,
    )
    check_sampling(sampling, vocab_size)
    return sampling


def _stops(message: target_pb2.DecodeRequest) -> tuple[str, ...]:
    if len(message.stop) > MAX_STOPS:
        raise InvalidField("stop", f"{len(message.stop)} strings", f"at most {MAX_STOPS}")
    for index, stop in enumerate(message.stop):
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidField(f"stop[{index}]", f"{len(stop)} characters", f"1 to {MAX_STOP_CHARACTERS}")
    return tuple(message.stop)


def _wish(message: target_pb2.DecodeRequest, sampling: SamplingParams, max_budget: int) -> DraftWish:
    wanted = message.speculation
    if not wanted.HasField("draft"):
        raise InvalidField("speculation.draft", "nothing", "a value", "The gateway fills in every default.")
    if wanted.HasField("budget") == wanted.auto_budget:
        got = wanted.budget if wanted.auto_budget else "nothing"
        raise InvalidField("speculation.budget", got, "a value, or auto_budget", "The gateway fills in every default.")
    if wanted.budget > max_budget:
        raise InvalidField("speculation.budget", wanted.budget, f"0 to {max_budget}")
    if wanted.HasField("strength") and not (
        math.isfinite(wanted.strength) and MIN_STRENGTH <= wanted.strength <= MAX_STRENGTH
    ):
        raise InvalidField("speculation.strength", wanted.strength, f"{MIN_STRENGTH:g} to {MAX_STRENGTH:g}")
    if not wanted.draft:
        return DraftWish()
    proposal = _named("proposal", PROPOSALS, wanted.proposal)
    selection = _named("selection", SELECTIONS, wanted.selection)
    wait = _named("wait", WAITS, wanted.wait)
    check_legal(proposal, selection, nucleus=wanted.HasField("nucleus"), greedy=sampling.greedy)
    deadline_s = None
    if wanted.HasField("deadline_ms"):
        if wait is not WaitFor.DEADLINE:
            raise InvalidField("speculation.deadline_ms", wanted.deadline_ms, "absent unless wait is a deadline")
        if not 1 <= wanted.deadline_ms <= MAX_DEADLINE_MS:
            raise InvalidField("speculation.deadline_ms", wanted.deadline_ms, f"1 to {MAX_DEADLINE_MS}")
        deadline_s = wanted.deadline_ms / 1e3
    budget = min(max_budget, MOST_NODES) if wanted.auto_budget else wanted.budget
    return DraftWish(
        budget=budget,
        auto=wanted.auto_budget and budget > 0,
        proposal=proposal,
        strength=wanted.strength if proposal is Proposal.COUPLED and wanted.HasField("strength") else None,
        selection=selection,
        wait=wait,
        deadline_s=deadline_s,
    )


def _learn(message: target_pb2.DecodeRequest, limits: RequestLimits) -> bool:
    wanted = message.speculation
    if wanted.learn and not limits.learn:
        raise InvalidField("speculation.learn", True, "false or absent", "This server learns from no reply.")
    return wanted.learn if wanted.HasField("learn") else limits.learn


def _named(field: str, kinds: Mapping[Number, Kind], number: Number) -> Kind:
    kind = kinds.get(number)
    if kind is None:
        allowed = ", ".join(f"{kind} ({number})" for number, kind in kinds.items())
        raise InvalidField(f"speculation.{field}", number, allowed, "The gateway fills in every default.")
    return kind
