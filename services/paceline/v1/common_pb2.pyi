from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Proposal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROPOSAL_UNSPECIFIED: _ClassVar[Proposal]
    PROPOSAL_RANKED: _ClassVar[Proposal]
    PROPOSAL_COUPLED: _ClassVar[Proposal]
    PROPOSAL_SAMPLED: _ClassVar[Proposal]

class SelectionRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SELECTION_RULE_UNSPECIFIED: _ClassVar[SelectionRule]
    SELECTION_RULE_AUTO: _ClassVar[SelectionRule]
    SELECTION_RULE_DRAFT: _ClassVar[SelectionRule]
    SELECTION_RULE_RETAIN: _ClassVar[SelectionRule]
    SELECTION_RULE_RERANK: _ClassVar[SelectionRule]
    SELECTION_RULE_DRAW_FIRST: _ClassVar[SelectionRule]

class WaitMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_MODE_UNSPECIFIED: _ClassVar[WaitMode]
    WAIT_MODE_TREE: _ClassVar[WaitMode]
    WAIT_MODE_DEADLINE: _ClassVar[WaitMode]
    WAIT_MODE_NEVER: _ClassVar[WaitMode]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
PROPOSAL_UNSPECIFIED: Proposal
PROPOSAL_RANKED: Proposal
PROPOSAL_COUPLED: Proposal
PROPOSAL_SAMPLED: Proposal
SELECTION_RULE_UNSPECIFIED: SelectionRule
SELECTION_RULE_AUTO: SelectionRule
SELECTION_RULE_DRAFT: SelectionRule
SELECTION_RULE_RETAIN: SelectionRule
SELECTION_RULE_RERANK: SelectionRule
SELECTION_RULE_DRAW_FIRST: SelectionRule
WAIT_MODE_UNSPECIFIED: WaitMode
WAIT_MODE_TREE: WaitMode
WAIT_MODE_DEADLINE: WaitMode
WAIT_MODE_NEVER: WaitMode
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class NucleusVerification(_message.Message):
    __slots__ = ("mass", "temperature", "max_deviation", "max_deviation_per_token", "max_relaxations")
    MASS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVIATION_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVIATION_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_RELAXATIONS_FIELD_NUMBER: _ClassVar[int]
    mass: float
    temperature: float
    max_deviation: float
    max_deviation_per_token: float
    max_relaxations: int
    def __init__(self, mass: _Optional[float] = ..., temperature: _Optional[float] = ..., max_deviation: _Optional[float] = ..., max_deviation_per_token: _Optional[float] = ..., max_relaxations: _Optional[int] = ...) -> None: ...

class SpeculationParams(_message.Message):
    __slots__ = ("draft", "budget", "proposal", "strength", "nucleus", "selection", "wait", "deadline_ms", "learn", "auto_budget")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    NUCLEUS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    LEARN_FIELD_NUMBER: _ClassVar[int]
    AUTO_BUDGET_FIELD_NUMBER: _ClassVar[int]
    draft: bool
    budget: int
    proposal: Proposal
    strength: float
    nucleus: NucleusVerification
    selection: SelectionRule
    wait: WaitMode
    deadline_ms: int
    learn: bool
    auto_budget: bool
    def __init__(self, draft: _Optional[bool] = ..., budget: _Optional[int] = ..., proposal: _Optional[_Union[Proposal, str]] = ..., strength: _Optional[float] = ..., nucleus: _Optional[_Union[NucleusVerification, _Mapping]] = ..., selection: _Optional[_Union[SelectionRule, str]] = ..., wait: _Optional[_Union[WaitMode, str]] = ..., deadline_ms: _Optional[int] = ..., learn: _Optional[bool] = ..., auto_budget: _Optional[bool] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("rounds", "drafted", "accepted", "fallbacks", "relaxed_tokens", "deviation_spent", "limits_applied", "selections", "row_passes", "row_cache_hits", "tokens_held_back", "verification", "strength", "budgets")
    class FallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LimitsAppliedEntry(_message.Message):
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
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    RELAXED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_SPENT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    SELECTIONS_FIELD_NUMBER: _ClassVar[int]
    ROW_PASSES_FIELD_NUMBER: _ClassVar[int]
    ROW_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    drafted: int
    accepted: int
    fallbacks: _containers.ScalarMap[str, int]
    relaxed_tokens: int
    deviation_spent: float
    limits_applied: _containers.ScalarMap[str, int]
    selections: _containers.ScalarMap[str, int]
    row_passes: int
    row_cache_hits: int
    tokens_held_back: int
    verification: str
    strength: float
    budgets: _containers.ScalarMap[int, int]
    def __init__(self, rounds: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., fallbacks: _Optional[_Mapping[str, int]] = ..., relaxed_tokens: _Optional[int] = ..., deviation_spent: _Optional[float] = ..., limits_applied: _Optional[_Mapping[str, int]] = ..., selections: _Optional[_Mapping[str, int]] = ..., row_passes: _Optional[int] = ..., row_cache_hits: _Optional[int] = ..., tokens_held_back: _Optional[int] = ..., verification: _Optional[str] = ..., strength: _Optional[float] = ..., budgets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("ttft_s", "total_s")
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    ttft_s: float
    total_s: float
    def __init__(self, ttft_s: _Optional[float] = ..., total_s: _Optional[float] = ...) -> None: ...

class RoundTrace(_message.Message):
    __slots__ = ("position", "emitted", "rule", "reason", "tree_tokens", "tree_parents", "tree_log_probs", "accepted", "relaxed", "drawn", "focused", "fallback", "draft_ms", "pass_ms", "pass_tokens", "deviation_spent", "tree_texts", "emitted_texts", "budget", "budget_reason")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TREE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TREE_PARENTS_FIELD_NUMBER: _ClassVar[int]
    TREE_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RELAXED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    FOCUSED_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    PASS_MS_FIELD_NUMBER: _ClassVar[int]
    PASS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_SPENT_FIELD_NUMBER: _ClassVar[int]
    TREE_TEXTS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TEXTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    BUDGET_REASON_FIELD_NUMBER: _ClassVar[int]
    position: int
    emitted: _containers.RepeatedScalarFieldContainer[int]
    rule: str
    reason: str
    tree_tokens: _containers.RepeatedScalarFieldContainer[int]
    tree_parents: _containers.RepeatedScalarFieldContainer[int]
    tree_log_probs: _containers.RepeatedScalarFieldContainer[float]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    relaxed: _containers.RepeatedScalarFieldContainer[int]
    drawn: int
    focused: bool
    fallback: str
    draft_ms: float
    pass_ms: float
    pass_tokens: int
    deviation_spent: float
    tree_texts: _containers.RepeatedScalarFieldContainer[str]
    emitted_texts: _containers.RepeatedScalarFieldContainer[str]
    budget: int
    budget_reason: str
    def __init__(self, position: _Optional[int] = ..., emitted: _Optional[_Iterable[int]] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., tree_tokens: _Optional[_Iterable[int]] = ..., tree_parents: _Optional[_Iterable[int]] = ..., tree_log_probs: _Optional[_Iterable[float]] = ..., accepted: _Optional[_Iterable[int]] = ..., relaxed: _Optional[_Iterable[int]] = ..., drawn: _Optional[int] = ..., focused: _Optional[bool] = ..., fallback: _Optional[str] = ..., draft_ms: _Optional[float] = ..., pass_ms: _Optional[float] = ..., pass_tokens: _Optional[int] = ..., deviation_spent: _Optional[float] = ..., tree_texts: _Optional[_Iterable[str]] = ..., emitted_texts: _Optional[_Iterable[str]] = ..., budget: _Optional[int] = ..., budget_reason: _Optional[str] = ...) -> None: ...
