"""Settings of a drafter replica."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.rpc.tls import TlsConfig

_STORE = ("store_mb", "store_file", "store_save_s")
_MODEL = ("model", "dtype", "device", "kv_tokens", "step_tokens", "width")
READ_BY = {"suffix": _STORE, "model": _MODEL, "fused": _STORE + _MODEL}  # settings that not every proposer reads


def unread_by(proposer: str) -> frozenset[str]:
    """Settings that a proposer does not read, although another one does."""
    return frozenset(_STORE + _MODEL) - frozenset(READ_BY[proposer])


class DrafterConfig(BaseModel):
    """Settings of a drafter replica. Every field has a default that suits a CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    proposer: Literal["suffix", "model", "fused"] = Field(
        default="suffix",
        description="suffix (statistics of text, no weights), model (a causal language model) or fused (one tree from"
        " both, each trusted as far as it has been right). Unset in an application: fused with the drafter that comes"
        " with the package for the target; suffix if there is none.",
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="Model of the model and fused proposers: a known name, a local folder or a Hugging Face id. With"
        " fused, the texts.npz in its folder, if there is one, is learned when the replica starts.",
    )
    target_model: str | None = Field(
        default=None,
        min_length=1,
        description="Model of the target; if given, tokenizers are compared when the replica starts. For the model"
        " proposer, and with store_file.",
    )
    dtype: str = Field(
        default="auto",
        pattern="^(auto|float32|bfloat16|int8|int4)$",
        description="Number format of the model: auto (int4 on a CPU that has kernels for it, else float32; bfloat16 on"
        " GPU), float32, bfloat16 or, on CPU, int8 or int4.",
    )
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="Device of the model proposer."
    )
    max_sessions: int = Field(default=256, ge=1, le=65536, description="Sessions held at once; 1 to 65536.")
    max_budget: int = Field(
        default=192,
        ge=1,
        le=16384,
        description="Most nodes of a tree; 1 to 16384. Targets that prune ask for three times their budget.",
    )
    known_rows: int = Field(
        default=4096,
        ge=0,
        le=10_000_000,
        description="Rows of targets kept by their context, to draft with when it comes again; about 1 kB each.",
    )
    max_depth: int = Field(default=8, ge=1, le=64, description="Most levels of a tree; 1 to 64.")
    min_path_prob: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        description="Nodes reached with less probability are not proposed; 0 to 1.",
    )
    store_mb: float = Field(
        default=120.0,
        ge=0,
        le=65536,
        description="Memory, in 10^6 bytes, for served text that the suffix proposer remembers over all sessions,"
        " about 0.45 kB a token; the least recently learned goes first; 0 to 65536, 0 remembers none.",
    )
    store_file: str | None = Field(
        default=None,
        min_length=1,
        description="File the remembered text is loaded from when the replica starts, if it exists, and saved to while"
        " it runs and when it ends. Replies of the default tenant only. Where replicas share a file, the last to save"
        " wins.",
    )
    store_save_s: float = Field(
        default=60.0,
        ge=0,
        le=86400,
        description="Seconds between saves of store_file, where something was learned; 0 to 86400, 0 never writes it.",
    )
    kv_tokens: int = Field(
        default=16384, ge=32, le=2**24, description="Tokens of KV memory of the model proposer; 32 to 16777216."
    )
    step_tokens: int = Field(
        default=256, ge=1, le=65536, description="Most tokens in one pass of the model proposer; 1 to 65536."
    )
    width: int = Field(
        default=4, ge=1, le=64, description="Nodes of a level that the model proposer looks below; 1 to 64."
    )
    stall_s: float = Field(
        default=60.0,
        ge=0.01,
        le=86400,
        description="Seconds without progress, while trees are wanted, after which the replica is unhealthy.",
    )
    bind_host: str = Field(default="127.0.0.1", min_length=1, description="Host name or address to listen on.")
    port: int = Field(default=0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    tls: TlsConfig | None = Field(default=None, description="Certificates of the data plane; absent: no TLS.")

    @property
    def has_model(self) -> bool:
        """True if the proposer runs a model."""
        return self.proposer != "suffix"

    @model_validator(mode="after")
    def _consistent(self) -> DrafterConfig:
        if self.has_model and self.model is None:
            raise ValueError(f"model: got None, allowed: a model, since proposer is {self.proposer!r}")
        for name in sorted(unread_by(self.proposer)):
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                readers = " and ".join(repr(each) for each, names in READ_BY.items() if name in names)
                raise ValueError(
                    f"{name}: got {value!r}, allowed: the default, since proposer is {self.proposer!r}."
                    f" It is a setting of proposers {readers}"
                )
        if self.target_model is not None and not self.has_model and self.store_file is None:
            raise ValueError(
                f"target_model: got {self.target_model!r}, allowed: None, since proposer is {self.proposer!r}"
                " and there is no store_file"
            )
        if self.store_file is not None and self.store_mb == 0:
            raise ValueError(f"store_file: got {self.store_file!r}, allowed: None, since store_mb is 0")
        if self.store_file is None and self.store_save_s != type(self).model_fields["store_save_s"].default:
            raise ValueError(f"store_save_s: got {self.store_save_s:g}, allowed: the default, without a store_file")
        return self
