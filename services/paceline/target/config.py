"""Settings of a target replica."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from paceline.rpc.tls import TlsConfig

AUTO: Literal["auto"] = "auto"


def _auto_or_number(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One error in place of one for each kind of value."""
    try:
        return check(value)
    except ValidationError:
        raise PydanticCustomError("budget", "auto, or a whole number from 0 to max_budget") from None


Budget = Annotated[Literal["auto"] | Annotated[int, Field(strict=True, ge=0, le=4096)], WrapValidator(_auto_or_number)]


class TargetConfig(BaseModel):
    """Settings of a target replica. Every field has a default that suits a small model on a CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        default="smollm2-135m-instruct",
        min_length=1,
        description="Model: a known name, a local folder or a Hugging Face id.",
    )
    dtype: str = Field(
        default="auto",
        pattern="^(auto|float32|bfloat16|int8|int4)$",
        description="Number format: auto (float32 on CPU, bfloat16 on GPU), float32, bfloat16 or, on CPU, int8 or"
        " int4.",
    )
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="Device: auto, cpu, cuda or cuda:N."
    )
    kv_tokens: int = Field(
        default=20480, ge=32, le=2**24, description="Tokens of KV memory, shared by all sessions; 32 to 16777216."
    )
    context_length: int | None = Field(
        default=None,
        ge=2,
        le=2**22,
        description="Most tokens of prompt and reply together. Absent: what the model and kv_tokens allow.",
    )
    max_sessions: int = Field(default=32, ge=1, le=4096, description="Sessions decoded at once; 1 to 4096.")
    max_queue: int = Field(
        default=64, ge=0, le=65536, description="Sessions waiting beyond those; more are refused; 0 to 65536."
    )
    step_tokens: int = Field(
        default=256, ge=1, le=65536, description="Most tokens in one pass: plain tokens, prompts and trees; 1 to 65536."
    )
    prefill_chunk: int = Field(
        default=128,
        ge=1,
        le=65536,
        description="Most prompt tokens in a pass that other sessions share; 1 to 65536.",
    )
    budget: Budget = Field(
        default=AUTO,
        description="Draft nodes per round where a request names none: auto (chosen anew every round from measured"
        " acceptance and times), or 0 to max_budget.",
    )
    max_budget: int = Field(
        default=64, ge=0, le=4096, description="Largest draft budget a request may ask for, in nodes; 0 to 4096."
    )
    selection: Literal["auto", "draft", "retain", "rerank", "draw_first"] = Field(
        default="draft",
        description="Selection rule where a request names none; retain and rerank suit no sampled proposals. auto and "
        "draw_first pay where drafter and target do not share cores: a row pass then overlaps drafting.",
    )
    wait: Literal["tree", "deadline", "never"] = Field(
        default="deadline", description="How long a round waits for its tree where a request does not say."
    )
    never_idle_sessions: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Most sessions decoded at once with which a target fills the wait for a tree with passes of its"
        " own; with more they fill it; 1 to 4096.",
    )
    row_cache_mb: float = Field(
        default=32.0, ge=0, le=65536, description="Memory for first rows of replies by their prompt; 0 to 65536."
    )
    cost_aware: bool = Field(
        default=True,
        description="Whether trees are cut to the size that promises most tokens a second by the measured pass times.",
    )
    learn: bool = Field(default=True, description="Whether drafters may learn from served text for other sessions.")
    draft_deadline_ms: float = Field(
        default=25.0,
        ge=0.1,
        le=60_000,
        description=(
            "Milliseconds a round waits for its tree, 0.1 to 60000. The default is under half of a 60 ms pass: a tree"
            " is worth about half a token, so a longer wait costs more than it brings."
        ),
    )
    suspend_after: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Deadlines missed in a row after which a drafter is no longer waited for; 1 to 1000.",
    )
    probe_ms: float = Field(
        default=1000.0,
        ge=1,
        le=3_600_000,
        description="Milliseconds between tries of a drafter that is not waited for; 1 to 3600000.",
    )
    connect_timeout_s: float = Field(
        default=3.0,
        ge=0.01,
        le=600,
        description="Seconds to lease and reach a drafter before trying again; 0.01 to 600.",
    )
    backoff_first_ms: float = Field(
        default=100.0,
        ge=1,
        le=600_000,
        description="Milliseconds before the first try to reconnect; doubles; 1 to 600000.",
    )
    backoff_max_ms: float = Field(
        default=5000.0, ge=1, le=600_000, description="Most milliseconds between tries to reconnect; 1 to 600000."
    )
    max_unread_tokens: int = Field(
        default=256,
        ge=1,
        le=2**20,
        description="Tokens a reader may be behind before its session pauses; 1 to 1048576.",
    )
    stall_s: float = Field(
        default=120.0,
        ge=0.01,
        le=86400,
        description="Seconds without progress, while work is pending, after which the replica is unhealthy.",
    )
    bind_host: str = Field(default="127.0.0.1", min_length=1, description="Host name or address to listen on.")
    port: int = Field(default=0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    tls: TlsConfig | None = Field(default=None, description="Certificates of the data plane; absent: no TLS.")

    @model_validator(mode="after")
    def _consistent(self) -> TargetConfig:
        if self.budget != AUTO and self.budget > self.max_budget:
            raise ValueError(f"budget: got {self.budget}, allowed: 0 to max_budget ({self.max_budget})")
        if self.step_tokens < self.max_sessions:
            raise ValueError(
                f"step_tokens: got {self.step_tokens}, allowed: at least max_sessions ({self.max_sessions}),"
                " so that every session moves in every pass"
            )
        if self.kv_tokens < self.max_budget + 32:
            raise ValueError(
                f"kv_tokens: got {self.kv_tokens}, allowed: at least max_budget + 32 ({self.max_budget + 32})"
            )
        return self
