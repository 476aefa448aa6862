"""Settings of a gateway replica."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from paceline.rpc.tls import TlsConfig


class ListenerConfig(BaseModel):
    """The gateway's own gRPC listener, beside Ray Serve's ingress: TLS, health, reflection and back-pressure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bind_host: str = Field(default="127.0.0.1", min_length=1, description="Host name or address to listen on.")
    port: int = Field(default=0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    tls: TlsConfig | None = Field(default=None, description="Certificates of the listener; absent: no TLS.")


class GatewayConfig(BaseModel):
    """Settings of a gateway replica. Every field has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(
        default=None,
        min_length=1,
        description="Model of the tokenizer: a known name, a local folder or a Hugging Face id. Absent: the target's.",
    )
    max_requests: int = Field(
        default=256,
        ge=1,
        le=10**6,
        description="Replies in flight at once; more are refused, and a request for n counts n; 1 to 1000000.",
    )
    max_choices: int = Field(
        default=16, ge=1, le=4096, description="Most replies that one request may ask for (n); 1 to 4096."
    )
    max_prompt_bytes: int = Field(
        default=2**20,
        ge=1,
        le=32 * 2**20,
        description="Most bytes of a request's text (prompt or conversation, UTF-8); 1 to 33554432.",
    )
    inline_prompt_bytes: int = Field(
        default=4096,
        ge=0,
        le=2**20,
        description="Text up to this size is tokenised on the event loop, longer text in a thread; 0 to 1048576 bytes.",
    )
    tokenizer_threads: int = Field(default=2, ge=1, le=64, description="Threads that tokenise long text; 1 to 64.")
    lease_timeout_s: float = Field(
        default=5.0, ge=0.01, le=600, description="Seconds to find a target replica before giving up; 0.01 to 600."
    )
    start_timeout_s: float = Field(
        default=600.0,
        ge=0.01,
        le=86400,
        description="Seconds to wait at start for a target that tells its model, where `model` is absent.",
    )
    call_timeout_s: float = Field(
        default=5.0, ge=0.01, le=600, description="Seconds a target may take to describe itself; 0.01 to 600."
    )
    max_failovers: int = Field(
        default=3,
        ge=0,
        le=100,
        description="Times in a row a reply moves to another target without a new token, before it fails; 0 to 100.",
    )
    failover_pause_ms: float = Field(
        default=50.0,
        ge=0,
        le=60_000,
        description="Milliseconds before the second move in a row; doubles with each; 0 to 60000.",
    )
    listener: ListenerConfig | None = Field(default=None, description="Direct listener; absent: Serve's ingress only.")
    target_tls: TlsConfig | None = Field(
        default=None, description="Certificates towards the targets' data plane; absent: no TLS."
    )

    @property
    def choices_limit(self) -> tuple[int, str]:
        """Most replies of a request, and the setting that says so: more than `max_requests` never find their places."""
        return min((self.max_choices, "max_choices"), (self.max_requests, "max_requests"))
