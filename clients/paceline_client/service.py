"""Model description and live state of a server, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.v1 import inference_pb2
from paceline_client.modes import MODES


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
    budget: int  # the most of it with `auto_budget`
    max_budget: int
    version: str
    has_chat_template: bool
    selection: str = ""  # default, as the two below; "" if the server names none
    wait: str = ""
    draft_deadline_ms: int = 0  # 0 if the server names none
    learn: bool = False  # whether drafters learn from replies where a request does not say
    max_choices: int = 0  # most replies a request may ask for; 0 if the server does not say, and gives one
    auto_budget: bool = False  # whether the server chooses each round's budget where a request names none


@dataclass(frozen=True, slots=True)
class StrengthState:
    """What a target has learned of one coupling strength."""

    proposer: str
    temperature_to: float  # upper end of the range of temperatures; 0 for the last, which has none
    strength: float  # 1e6 ranks by probability alone
    in_force: bool  # most sessions that name no strength get it
    sessions: float  # it is known from, by weight
    accepted_per_round: float  # draft tokens


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
    selections: Mapping[str, int] = field(default_factory=dict)  # rounds by selection rule
    selection_reason: str = ""  # why "auto" chose as it did in its latest round; "" before the first
    row_cache_hits: int = 0
    relaxed: int = 0  # tokens kept by the nucleus rule alone
    budgets: Mapping[int, int] = field(default_factory=dict)  # rounds by draft nodes asked for, where the server chose
    budget_reason: str = ""  # why so many in the latest of them; "" before the first
    strengths: tuple[StrengthState, ...] = ()
    shared_prompt_tokens: int = 0  # whose KV was copied from a session with the same prompt


@dataclass(frozen=True, slots=True)
class MemberTrust:
    """How far a member of a fused proposer was right at one level of the tree."""

    warmth: str  # range of temperatures: "greedy", "cool" or "warm"
    depth: int  # 1 for the first level; the last one stands for deeper ones too
    contexts: float  # where it said something and the target's token became known
    promised: float  # mean probability that it gave its first token
    right: float  # share of them where its first token was the target's


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a fused proposer."""

    proposer: str
    sessions: int  # that it drafts for
    passes: int  # of its model since start
    left: Mapping[str, int]  # sessions that went on without it since start, by reason
    trust: tuple[MemberTrust, ...]


@dataclass(frozen=True, slots=True)
class DrafterState:
    """State of a drafter replica."""

    address: str
    incarnation: str
    proposer: str
    sessions: int
    streams: int
    members: tuple[MemberState, ...] = ()  # of a fused proposer


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
        selection=_word("selection", info.default_selection),
        wait=_word("wait", info.default_wait),
        draft_deadline_ms=info.default_deadline_ms,
        learn=info.default_learn,
        max_choices=info.max_choices,
        auto_budget=info.default_auto_budget,
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
                selections=dict(target.selections),
                selection_reason=target.selection_reason,
                row_cache_hits=target.row_cache_hits,
                relaxed=target.relaxed,
                shared_prompt_tokens=target.shared_prompt_tokens,
                budgets=dict(target.budgets),
                budget_reason=target.budget_reason,
                strengths=tuple(
                    StrengthState(
                        each.proposer,
                        each.temperature_to,
                        each.strength,
                        each.in_force,
                        each.sessions,
                        each.accepted_per_round,
                    )
                    for each in target.strengths
                ),
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
                members=tuple(
                    MemberState(
                        each.proposer,
                        each.sessions,
                        each.passes,
                        dict(each.left),
                        tuple(
                            MemberTrust(line.warmth, line.depth, line.contexts, line.promised, line.right)
                            for line in each.trust
                        ),
                    )
                    for each in drafter.members
                ),
            )
            for drafter in status.drafters
        ),
    )


def _word(mode: str, number: int) -> str:
    return next((word for word, known in MODES[mode].items() if known == number), "")
