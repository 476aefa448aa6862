from paceline.v1 import common_pb2 as _common_pb2
from paceline.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeRequest(_message.Message):
    __slots__ = ("prompt_tokens", "delivered_tokens", "sampling", "max_tokens", "stop", "ignore_eos", "speculation", "request_id", "deviation_spent", "relaxed_tokens", "trace", "choice")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_SPENT_FIELD_NUMBER: _ClassVar[int]
    RELAXED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: bytes
    delivered_tokens: bytes
    sampling: _common_pb2.SamplingParams
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    speculation: _common_pb2.SpeculationParams
    request_id: str
    deviation_spent: float
    relaxed_tokens: int
    trace: bool
    choice: int
    def __init__(self, prompt_tokens: _Optional[bytes] = ..., delivered_tokens: _Optional[bytes] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationParams, _Mapping]] = ..., request_id: _Optional[str] = ..., deviation_spent: _Optional[float] = ..., relaxed_tokens: _Optional[int] = ..., trace: _Optional[bool] = ..., choice: _Optional[int] = ...) -> None: ...

class TargetFinish(_message.Message):
    __slots__ = ("reason", "stop_match", "usage", "speculation", "timings")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_MATCH_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    stop_match: str
    usage: _common_pb2.Usage
    speculation: _common_pb2.SpeculationStats
    timings: _common_pb2.Timings
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_match: _Optional[str] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., speculation: _Optional[_Union[_common_pb2.SpeculationStats, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("tokens", "finish", "deviation_spent", "relaxed_tokens", "rounds")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_SPENT_FIELD_NUMBER: _ClassVar[int]
    RELAXED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    finish: TargetFinish
    deviation_spent: float
    relaxed_tokens: int
    rounds: _containers.RepeatedCompositeFieldContainer[_common_pb2.RoundTrace]
    def __init__(self, tokens: _Optional[bytes] = ..., finish: _Optional[_Union[TargetFinish, _Mapping]] = ..., deviation_spent: _Optional[float] = ..., relaxed_tokens: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[_common_pb2.RoundTrace, _Mapping]]] = ...) -> None: ...

class GetTargetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTargetInfoResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _inference_pb2.GetModelInfoResponse
    def __init__(self, model: _Optional[_Union[_inference_pb2.GetModelInfoResponse, _Mapping]] = ...) -> None: ...

class GetTargetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTargetStatusResponse(_message.Message):
    __slots__ = ("target", "drafters")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    target: _inference_pb2.TargetStatus
    drafters: _containers.RepeatedCompositeFieldContainer[_inference_pb2.DrafterStatus]
    def __init__(self, target: _Optional[_Union[_inference_pb2.TargetStatus, _Mapping]] = ..., drafters: _Optional[_Iterable[_Union[_inference_pb2.DrafterStatus, _Mapping]]] = ...) -> None: ...
