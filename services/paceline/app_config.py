"""Settings of the whole application: what each service does, how many replicas it has and where they run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.gateway.config import GatewayConfig
from paceline.placement import POOL_LABEL, Demand
from paceline.runtime.known_models import DEFAULT_MODEL
from paceline.runtime.shipped import shipped_for
from paceline.target.config import TargetConfig

PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Resources(_Settings):
    """What one replica asks of its node. Ray hands it out and does not enforce it, GPUs apart."""

    num_cpus: float = Field(default=0, ge=0, le=4096, description="CPUs, 0 to 4096.")
    num_gpus: float = Field(default=0, ge=0, le=64, description="GPUs, fractions allowed; 0 to 64.")
    memory_bytes: int | None = Field(default=None, ge=1, description="Main memory in bytes.")
    custom: dict[str, float] = Field(default_factory=dict, description="Custom Ray resources by name.")
    accelerator_type: str | None = Field(
        default=None, description="Ray accelerator type of the node, for example H100."
    )

    def by_ray_name(self) -> dict[str, float]:
        """Amounts above zero under Ray's names; an accelerator type as the trace of a resource that Ray makes of it."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory_bytes or 0), **self.custom}
        if self.accelerator_type is not None:
            amounts[f"accelerator_type:{self.accelerator_type}"] = 0.001
        return {name: amount for name, amount in amounts.items() if amount > 0}


class ReplicaSettings(_Settings):
    """How many replicas of a service there are, and where."""

    replicas: int = Field(default=1, ge=1, le=1024, description="Replicas, 1 to 1024.")
    pool: PoolName | None = Field(
        default=None, description=f"Only nodes whose label {POOL_LABEL} is this take replicas. Null: any node."
    )
    resources: Resources = Field(default_factory=Resources, description="What one replica asks of its node.")
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Compute threads of a replica, 1 to 1024; 0: one for each CPU that it asks of its node, or, where"
        " it asks for none, one for each that it may use there.",
    )
    max_ongoing_requests: int = Field(default=4096, ge=1, le=10**6, description="Ray Serve requests at once.")
    health_check_period_s: float = Field(default=2.0, ge=0.1, le=600, description="Seconds between health checks.")
    health_check_timeout_s: float = Field(default=5.0, ge=0.1, le=600, description="Seconds a health check may take.")
    drain_s: float = Field(
        default=5.0, ge=0, le=3600, description="Seconds a leaving replica gives its streams to end by themselves."
    )

    @property
    def compute_threads(self) -> int:
        """`threads`, or those of the CPUs it asks for; 0 leaves it to the replica, which knows its node."""
        return self.threads or math.ceil(self.resources.num_cpus)


class TargetPart(ReplicaSettings):
    """The target service."""

    pool: PoolName | None = "target"
    settings: TargetConfig = Field(default_factory=TargetConfig, description="Settings of a target replica.")


class DrafterPart(ReplicaSettings):
    """The drafter service."""

    pool: PoolName | None = "drafter"
    threads: int = Field(default=1, ge=0, le=1024, description="Compute threads of a replica; 0: as for the target.")
    settings: DrafterConfig = Field(default_factory=DrafterConfig, description="Settings of a drafter replica.")


class GatewayPart(ReplicaSettings):
    """The gateway service."""

    pool: PoolName | None = "gateway"
    threads: int = Field(default=1, ge=0, le=1024, description="Compute threads of a replica; 0: as for the target.")
    settings: GatewayConfig = Field(default_factory=GatewayConfig, description="Settings of a gateway replica.")


class DataPlane(_Settings):
    """Where the servers of targets and drafters listen."""

    host: str = Field(
        default="node", min_length=1, description='Address to listen on; "node": the address Ray knows the node by.'
    )
    first_port: int = Field(default=0, ge=0, le=65535, description="First port of the range; 0: any free port.")
    last_port: int = Field(default=0, ge=0, le=65535, description="Last port of the range, inclusive.")

    @model_validator(mode="after")
    def _ordered(self) -> DataPlane:
        if self.last_port < self.first_port or (self.last_port > 0) != (self.first_port > 0):
            raise ValueError(
                f"last_port: got {self.last_port}, allowed: {self.first_port} (first_port) to 65535, or both 0"
            )
        return self


class AppConfig(_Settings):
    """The application. `drafter: null` decodes plainly."""

    gateway: GatewayPart = Field(default_factory=GatewayPart)
    target: TargetPart = Field(default_factory=TargetPart)
    drafter: DrafterPart | None = Field(default_factory=DrafterPart)
    data_plane: DataPlane = Field(default_factory=DataPlane)

    @model_validator(mode="after")
    def _data_plane_alone_places_servers(self) -> AppConfig:
        for name, part in (("target", self.target), ("drafter", self.drafter)):
            for field in ("bind_host", "port"):
                if part is not None and field in part.settings.model_fields_set:
                    raise ValueError(f"{name}.settings.{field}: set data_plane instead, which holds for every replica")
        return self

    @property
    def parts(self) -> dict[str, ReplicaSettings]:
        """Settings of each deployment by its field's name."""
        named: dict[str, ReplicaSettings] = {"gateway": self.gateway, "target": self.target}
        return named if self.drafter is None else {**named, "drafter": self.drafter}

    def completed(self) -> AppConfig:
        """With the target's model named wherever another service needs to know it and nothing else was said."""
        model = self.target.settings.model
        gateway, drafter = self.gateway.settings, None if self.drafter is None else self.drafter.settings
        update: dict[str, object] = {}
        if gateway.model is None:
            settings = gateway.model_copy(update={"model": model})
            update["gateway"] = self.gateway.model_copy(update={"settings": settings})
        needs_target = drafter is not None and (drafter.has_model or drafter.store_file is not None)
        if needs_target and drafter is not None and drafter.target_model is None:
            assert self.drafter is not None
            told = drafter.model_copy(update={"target_model": model})
            update["drafter"] = self.drafter.model_copy(update={"settings": told})
        return self.model_copy(update=update)

    def demands(self) -> list[Demand]:
        """What the application asks of a cluster."""
        return [
            Demand(name, part.replicas, part.pool, part.resources.by_ray_name()) for name, part in self.parts.items()
        ]


def with_own_drafter(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the drafter that the package has for the target, fused, where they name no proposer."""
    given = dict(arguments)
    drafter, target = given.get("drafter", {}), given.get("target", {})
    if not isinstance(drafter, Mapping) or not isinstance(target, Mapping):
        return given  # no drafter, or a fault that is named later
    settings, theirs = drafter.get("settings", {}), target.get("settings", {})
    if not isinstance(settings, Mapping) or not isinstance(theirs, Mapping) or {"proposer", "model"} & set(settings):
        return given
    own = shipped_for(str(theirs.get("model", DEFAULT_MODEL)))
    if own is not None:
        given["drafter"] = {**drafter, "settings": {**settings, "proposer": "fused", "model": own}}
    return given


def parse(arguments: Mapping[str, Any]) -> AppConfig:
    """Reads the application's settings. Raises InvalidField naming the field, the value and what is allowed."""
    try:
        return AppConfig.model_validate(with_own_drafter(arguments))
    except ValidationError as error:
        raise _readable(error) from None


def _readable(error: ValidationError) -> InvalidField:
    """The first fault in words; the others, if any, as its remedy."""
    first, *others = error.errors()
    rest = f"Also wrong: {', '.join(_path(other) for other in others)}." if others else ""
    if first["type"] == "extra_forbidden":
        return InvalidField(_path(first), first["input"], f"no such field; known: {_siblings(first['loc'])}", rest)
    if first["type"] == "value_error":
        # Our own validators name the field, the value and the range themselves.
        fault = InvalidField(_path(first), first["input"], str(first["ctx"]["error"]))
        fault.args = (" ".join(f"{_path(first)}.{first['ctx']['error']}. {rest}".lstrip(".").split()),)
        return fault
    return InvalidField(_path(first), first["input"], first["msg"].removeprefix("Input should be "), rest)


def _path(fault: Any) -> str:
    return ".".join(str(part) for part in fault["loc"])


def _siblings(location: tuple[int | str, ...]) -> str:
    """Fields beside the one at `location`, for the reader who misspelt it."""
    model: Any = AppConfig
    for part in location[:-1]:
        annotation = model.model_fields[str(part)].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)
        if model is None:
            return "none"
    return ", ".join(model.model_fields)
