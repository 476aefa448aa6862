from paceline.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenInput(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("text", "chat", "tokens", "sampling", "max_tokens", "stop", "ignore_eos", "speculation", "deadline_ms", "model", "trace", "n", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "min_tokens", "json_schema")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatInput
    tokens: TokenInput
    sampling: _common_pb2.SamplingParams
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    speculation: _common_pb2.SpeculationParams
    deadline_ms: int
    model: str
    trace: bool
    n: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    min_tokens: int
    json_schema: str
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ..., tokens: _Optional[_Union[TokenInput, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationParams, _Mapping]] = ..., deadline_ms: _Optional[int] = ..., model: _Optional[str] = ..., trace: _Optional[bool] = ..., n: _Optional[int] = ..., min_p: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., min_tokens: _Optional[int] = ..., json_schema: _Optional[str] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("token_ids", "text", "rounds", "index")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    rounds: _containers.RepeatedCompositeFieldContainer[_common_pb2.RoundTrace]
    index: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., rounds: _Optional[_Iterable[_Union[_common_pb2.RoundTrace, _Mapping]]] = ..., index: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "stop_match", "usage", "speculation", "timings", "seed", "model", "index")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_MATCH_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    stop_match: str
    usage: _common_pb2.Usage
    speculation: _common_pb2.SpeculationStats
    timings: _common_pb2.Timings
    seed: int
    model: str
    index: int
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_match: _Optional[str] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStats, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ..., seed: _Optional[int] = ..., model: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("delta", "finish")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    delta: Delta
    finish: Finish
    def __init__(self, delta: _Optional[_Union[Delta, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model", "vocab_size", "context_length", "eos_token_ids", "dtype", "device", "tokenizer_fingerprint", "proposer", "default_sampling", "default_budget", "max_budget", "version", "has_chat_template", "default_selection", "default_wait", "default_deadline_ms", "default_learn", "max_choices", "default_auto_budget")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_BUDGET_FIELD_NUMBER: _ClassVar[int]
    MAX_BUDGET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SELECTION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_WAIT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_LEARN_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_AUTO_BUDGET_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocab_size: int
    context_length: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    device: str
    tokenizer_fingerprint: str
    proposer: str
    default_sampling: _common_pb2.SamplingParams
    default_budget: int
    max_budget: int
    version: str
    has_chat_template: bool
    default_selection: _common_pb2.SelectionRule
    default_wait: _common_pb2.WaitMode
    default_deadline_ms: int
    default_learn: bool
    max_choices: int
    default_auto_budget: bool
    def __init__(self, model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., proposer: _Optional[str] = ..., default_sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., default_budget: _Optional[int] = ..., max_budget: _Optional[int] = ..., version: _Optional[str] = ..., has_chat_template: _Optional[bool] = ..., default_selection: _Optional[_Union[_common_pb2.SelectionRule, str]] = ..., default_wait: _Optional[_Union[_common_pb2.WaitMode, str]] = ..., default_deadline_ms: _Optional[int] = ..., default_learn: _Optional[bool] = ..., max_choices: _Optional[int] = ..., default_auto_budget: _Optional[bool] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TargetStatus(_message.Message):
    __slots__ = ("address", "incarnation", "active_sessions", "queued_sessions", "kv_pages_used", "kv_pages_total", "passes", "accepted", "drafted", "emitted", "fallbacks", "drafter_address", "drafter_state", "selections", "selection_reason", "row_cache_hits", "relaxed", "budgets", "budget_reason", "strengths", "shared_prompt_tokens")
    class FallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SelectionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BudgetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    KV_PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    KV_PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_STATE_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_REASON_FIELD_NUMBER: _ClassVar[int]
    ROW_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    RELAXED_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_REASON_FIELD_NUMBER: _ClassVar[int]
    STRENGTHS_FIELD_NUMBER: _ClassVar[int]
    SHARED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
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
    fallbacks: _containers.ScalarMap[str, int]
    drafter_address: str
    drafter_state: str
    selections: _containers.ScalarMap[str, int]
    selection_reason: str
    row_cache_hits: int
    relaxed: int
    budgets: _containers.ScalarMap[int, int]
    budget_reason: str
    strengths: _containers.RepeatedCompositeFieldContainer[StrengthState]
    shared_prompt_tokens: int
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[str] = ..., active_sessions: _Optional[int] = ..., queued_sessions: _Optional[int] = ..., kv_pages_used: _Optional[int] = ..., kv_pages_total: _Optional[int] = ..., passes: _Optional[int] = ..., accepted: _Optional[int] = ..., drafted: _Optional[int] = ..., emitted: _Optional[int] = ..., fallbacks: _Optional[_Mapping[str, int]] = ..., drafter_address: _Optional[str] = ..., drafter_state: _Optional[str] = ..., selections: _Optional[_Mapping[str, int]] = ..., selection_reason: _Optional[str] = ..., row_cache_hits: _Optional[int] = ..., relaxed: _Optional[int] = ..., budgets: _Optional[_Mapping[int, int]] = ..., budget_reason: _Optional[str] = ..., strengths: _Optional[_Iterable[_Union[StrengthState, _Mapping]]] = ..., shared_prompt_tokens: _Optional[int] = ...) -> None: ...

class StrengthState(_message.Message):
    __slots__ = ("proposer", "temperature_to", "strength", "in_force", "sessions", "accepted_per_round")
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_TO_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_ROUND_FIELD_NUMBER: _ClassVar[int]
    proposer: str
    temperature_to: float
    strength: float
    in_force: bool
    sessions: float
    accepted_per_round: float
    def __init__(self, proposer: _Optional[str] = ..., temperature_to: _Optional[float] = ..., strength: _Optional[float] = ..., in_force: _Optional[bool] = ..., sessions: _Optional[float] = ..., accepted_per_round: _Optional[float] = ...) -> None: ...

class DrafterStatus(_message.Message):
    __slots__ = ("address", "incarnation", "proposer", "sessions", "streams", "members")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: str
    proposer: str
    sessions: int
    streams: int
    members: _containers.RepeatedCompositeFieldContainer[MemberState]
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[str] = ..., proposer: _Optional[str] = ..., sessions: _Optional[int] = ..., streams: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberState, _Mapping]]] = ...) -> None: ...

class MemberState(_message.Message):
    __slots__ = ("proposer", "sessions", "passes", "left", "trust")
    class LeftEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    proposer: str
    sessions: int
    passes: int
    left: _containers.ScalarMap[str, int]
    trust: _containers.RepeatedCompositeFieldContainer[MemberTrust]
    def __init__(self, proposer: _Optional[str] = ..., sessions: _Optional[int] = ..., passes: _Optional[int] = ..., left: _Optional[_Mapping[str, int]] = ..., trust: _Optional[_Iterable[_Union[MemberTrust, _Mapping]]] = ...) -> None: ...

class MemberTrust(_message.Message):
    __slots__ = ("warmth", "depth", "contexts", "promised", "right")
    WARMTH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    warmth: str
    depth: int
    contexts: float
    promised: float
    right: float
    def __init__(self, warmth: _Optional[str] = ..., depth: _Optional[int] = ..., contexts: _Optional[float] = ..., promised: _Optional[float] = ..., right: _Optional[float] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("gateway_requests", "targets", "drafters")
    GATEWAY_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    gateway_requests: int
    targets: _containers.RepeatedCompositeFieldContainer[TargetStatus]
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterStatus]
    def __init__(self, gateway_requests: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[TargetStatus, _Mapping]]] = ..., drafters: _Optional[_Iterable[_Union[DrafterStatus, _Mapping]]] = ...) -> None: ...
