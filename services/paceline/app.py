"""The Ray Serve application: the one place where gateway, target and drafter meet.

`paceline.app:build` is the import path for Serve config files (deploy/serve, deploy/kuberay); its `args` are the fields
of `paceline.app_config.AppConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application

from paceline.app_config import AppConfig, ReplicaSettings, parse
from paceline.drafter.deployment import DrafterReplica
from paceline.gateway.deployment import GatewayReplica
from paceline.placement import POOL_LABEL
from paceline.target.deployment import TargetReplica

NAME = "paceline"  # of the application
WAIT_LOOP_S = 0.2  # how often a leaving replica looks whether its requests have ended


def build(args: Mapping[str, Any] | AppConfig) -> Application:
    """Builds the application from its settings. Raises InvalidField on a wrong one."""
    config = (args if isinstance(args, AppConfig) else parse(args)).completed()
    drafter = None
    if config.drafter is not None:
        guesses = config.drafter
        drafter = deployment(DrafterReplica, "Drafter", guesses).bind(
            guesses.settings, config.data_plane, guesses.compute_threads, guesses.drain_s
        )
    truth = config.target
    target = deployment(TargetReplica, "Target", truth).bind(
        truth.settings, config.data_plane, truth.compute_threads, truth.drain_s, drafter
    )
    edge = config.gateway
    return deployment(GatewayReplica, "Gateway", edge).bind(edge.settings, edge.compute_threads, edge.drain_s, target)


def deployment(replica: type, name: str, part: ReplicaSettings) -> serve.Deployment:
    """The Serve deployment of a replica class under `part`'s numbers and placement."""
    return serve.deployment(
        replica,
        name=name,
        num_replicas=part.replicas,
        max_ongoing_requests=part.max_ongoing_requests,
        health_check_period_s=part.health_check_period_s,
        health_check_timeout_s=part.health_check_timeout_s,
        graceful_shutdown_wait_loop_s=WAIT_LOOP_S,
        graceful_shutdown_timeout_s=part.drain_s + 5,  # stopping the server comes after draining it
        ray_actor_options=actor_options(part),
    )


def actor_options(part: ReplicaSettings) -> dict[str, Any]:
    """Ray's form of what a replica asks of its node."""
    asked = part.resources
    options: dict[str, Any] = {"num_cpus": asked.num_cpus, "num_gpus": asked.num_gpus}
    if part.pool is not None:
        options["label_selector"] = {POOL_LABEL: part.pool}
    if asked.custom:
        options["resources"] = dict(asked.custom)
    if asked.memory_bytes is not None:
        options["memory"] = asked.memory_bytes
    if asked.accelerator_type is not None:
        options["accelerator_type"] = asked.accelerator_type
    return options
