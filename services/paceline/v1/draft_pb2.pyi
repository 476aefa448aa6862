from paceline.v1 import common_pb2 as _common_pb2
from paceline.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_ERROR_CODE_UNSPECIFIED: _ClassVar[SessionErrorCode]
    SESSION_ERROR_CODE_TOKENIZER_MISMATCH: _ClassVar[SessionErrorCode]
    SESSION_ERROR_CODE_CONTEXT_LIMIT: _ClassVar[SessionErrorCode]
    SESSION_ERROR_CODE_PROTOCOL: _ClassVar[SessionErrorCode]
    SESSION_ERROR_CODE_OVERLOADED: _ClassVar[SessionErrorCode]
    SESSION_ERROR_CODE_INTERNAL: _ClassVar[SessionErrorCode]
SESSION_ERROR_CODE_UNSPECIFIED: SessionErrorCode
SESSION_ERROR_CODE_TOKENIZER_MISMATCH: SessionErrorCode
SESSION_ERROR_CODE_CONTEXT_LIMIT: SessionErrorCode
SESSION_ERROR_CODE_PROTOCOL: SessionErrorCode
SESSION_ERROR_CODE_OVERLOADED: SessionErrorCode
SESSION_ERROR_CODE_INTERNAL: SessionErrorCode

class DraftRequest(_message.Message):
    __slots__ = ("updates",)
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[SessionUpdate]
    def __init__(self, updates: _Optional[_Iterable[_Union[SessionUpdate, _Mapping]]] = ...) -> None: ...

class SessionUpdate(_message.Message):
    __slots__ = ("session", "epoch", "open", "advance", "close", "target_row")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    TARGET_ROW_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    open: OpenSession
    advance: AdvanceSession
    close: CloseSession
    target_row: TargetRow
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., open: _Optional[_Union[OpenSession, _Mapping]] = ..., advance: _Optional[_Union[AdvanceSession, _Mapping]] = ..., close: _Optional[_Union[CloseSession, _Mapping]] = ..., target_row: _Optional[_Union[TargetRow, _Mapping]] = ...) -> None: ...

class DraftOptions(_message.Message):
    __slots__ = ("proposal", "strength", "sampling", "eos_token_ids", "learn", "propose_seed", "choice")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LEARN_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    proposal: _common_pb2.Proposal
    strength: float
    sampling: _common_pb2.SamplingParams
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    learn: bool
    propose_seed: int
    choice: int
    def __init__(self, proposal: _Optional[_Union[_common_pb2.Proposal, str]] = ..., strength: _Optional[float] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., learn: _Optional[bool] = ..., propose_seed: _Optional[int] = ..., choice: _Optional[int] = ...) -> None: ...

class SparseRow(_message.Message):
    __slots__ = ("token_ids", "probs", "tail")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROBS_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    probs: bytes
    tail: float
    def __init__(self, token_ids: _Optional[bytes] = ..., probs: _Optional[bytes] = ..., tail: _Optional[float] = ...) -> None: ...

class TargetRow(_message.Message):
    __slots__ = ("base_length", "drawn", "row", "budget")
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    base_length: int
    drawn: int
    row: SparseRow
    budget: int
    def __init__(self, base_length: _Optional[int] = ..., drawn: _Optional[int] = ..., row: _Optional[_Union[SparseRow, _Mapping]] = ..., budget: _Optional[int] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("context_tokens", "prompt_length", "tokenizer_fingerprint", "vocab_size", "options", "budget")
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    context_tokens: bytes
    prompt_length: int
    tokenizer_fingerprint: str
    vocab_size: int
    options: DraftOptions
    budget: int
    def __init__(self, context_tokens: _Optional[bytes] = ..., prompt_length: _Optional[int] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., options: _Optional[_Union[DraftOptions, _Mapping]] = ..., budget: _Optional[int] = ...) -> None: ...

class AdvanceSession(_message.Message):
    __slots__ = ("base_length", "tokens", "budget")
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    base_length: int
    tokens: bytes
    budget: int
    def __init__(self, base_length: _Optional[int] = ..., tokens: _Optional[bytes] = ..., budget: _Optional[int] = ...) -> None: ...

class CloseSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[SessionReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[SessionReply, _Mapping]]] = ...) -> None: ...

class SessionReply(_message.Message):
    __slots__ = ("session", "epoch", "tree", "evicted", "error")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    tree: DraftTree
    evicted: SessionEvicted
    error: SessionError
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., tree: _Optional[_Union[DraftTree, _Mapping]] = ..., evicted: _Optional[_Union[SessionEvicted, _Mapping]] = ..., error: _Optional[_Union[SessionError, _Mapping]] = ...) -> None: ...

class DraftTree(_message.Message):
    __slots__ = ("base_length", "tokens", "parents", "log_probs", "growing", "rows")
    BASE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    GROWING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    base_length: int
    tokens: bytes
    parents: bytes
    log_probs: bytes
    growing: bool
    rows: _containers.RepeatedCompositeFieldContainer[ProposalRow]
    def __init__(self, base_length: _Optional[int] = ..., tokens: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., log_probs: _Optional[bytes] = ..., growing: _Optional[bool] = ..., rows: _Optional[_Iterable[_Union[ProposalRow, _Mapping]]] = ...) -> None: ...

class ProposalRow(_message.Message):
    __slots__ = ("node", "token_ids", "weights")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    node: int
    token_ids: bytes
    weights: bytes
    def __init__(self, node: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., weights: _Optional[bytes] = ...) -> None: ...

class SessionEvicted(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SessionError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: SessionErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[SessionErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class GetDrafterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDrafterStatusResponse(_message.Message):
    __slots__ = ("status", "tokenizer_fingerprint", "context_length")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    status: _inference_pb2.DrafterStatus
    tokenizer_fingerprint: str
    context_length: int
    def __init__(self, status: _Optional[_Union[_inference_pb2.DrafterStatus, _Mapping]] = ..., tokenizer_fingerprint: _Optional[str] = ..., context_length: _Optional[int] = ...) -> None: ...
