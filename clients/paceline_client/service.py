"""Model description and live state of a server, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.v1 import inference_pb2


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model, its limits and defaults."""

    model: str
    vocab_size: int  # tokens that can be emitted
    context_length: int  # most tokens of prompt and reply together
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    tokenizer_fingerprint: str
    proposer: str  # "" if no drafter is reachable
    temperature: float  # default, as the three below
    top_k: int
    top_p: float
    budget: int
    max_budget: int
    version: str
    has_chat_template: bool


@dataclass(frozen=True, slots=True)
class TargetState:
    """State of a target replica; counts are since its start."""

    address: str
    incarnation: str
    active_sessions: int
    queued_sessions: int
    kv_pages_used: int
    kv_pages_total: int
    passes: int
    accepted: int
    drafted: int
    emitted: int
    fallbacks: Mapping[str, int]
    drafter_address: str
    drafter_state: str


@dataclass(frozen=True, slots=True)
class DrafterState:
    """State of a drafter replica."""

    address: str
    incarnation: str
    proposer: str
    sessions: int
    streams: int


@dataclass(frozen=True, slots=True)
class Status:
    """State of the service as the answering gateway sees it."""

    gateway_requests: int
    targets: tuple[TargetState, ...]
    drafters: tuple[DrafterState, ...]


def model_info_of(info: inference_pb2.GetModelInfoResponse) -> ModelInfo:
    """The description as a value."""
    sampling = info.default_sampling
    return ModelInfo(
        model=info.model,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        eos_token_ids=tuple(info.eos_token_ids),
        dtype=info.dtype,
        device=info.device,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        proposer=info.proposer,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        budget=info.default_budget,
        max_budget=info.max_budget,
        version=info.version,
        has_chat_template=info.has_chat_template,
    )


def status_of(status: inference_pb2.GetStatusResponse) -> Status:
    """The state as a value."""
    return Status(
        gateway_requests=status.gateway_requests,
        targets=tuple(
            TargetState(
                address=target.address,
                incarnation=target.incarnation,
                active_sessions=target.active_sessions,
                queued_sessions=target.queued_sessions,
                kv_pages_used=target.kv_pages_used,
                kv_pages_total=target.kv_pages_total,
                passes=target.passes,
                accepted=target.accepted,
                drafted=target.drafted,
                emitted=target.emitted,
                fallbacks=dict(target.fallbacks),
                drafter_address=target.drafter_address,
                drafter_state=target.drafter_state,
            )
            for target in status.targets
        ),
        drafters=tuple(
            DrafterState(
                address=drafter.address,
                incarnation=drafter.incarnation,
                proposer=drafter.proposer,
                sessions=drafter.sessions,
                streams=drafter.streams,
            )
            for drafter in status.drafters
        ),
    )
