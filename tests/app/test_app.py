"""The Serve application as built: names, order, placement; without a cluster."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from ray.serve import Application

from paceline.app import actor_options, build
from paceline.app_config import ReplicaSettings, Resources, parse
from paceline.errors import InvalidField
from paceline.placement import POOL_LABEL


def chain(application: Application) -> list[Any]:
    """The deployments, each with the next as its last argument."""
    found = []
    node: Any = application
    while isinstance(node, Application):
        bound = node._bound_deployment
        found.append(bound)
        node = bound.init_args[-1]
    return found


def test_gateway_asks_target_asks_drafter() -> None:
    deployments = chain(build({}))
    assert [each.name for each in deployments] == ["Gateway", "Target", "Drafter"]


def test_without_a_drafter_the_target_is_told_so() -> None:
    deployments = chain(build({"drafter": None}))
    assert [each.name for each in deployments] == ["Gateway", "Target"]
    assert deployments[1].init_args[-1] is None


def test_numbers_reach_serve() -> None:
    config = {"target": {"replicas": 3, "health_check_period_s": 1, "drain_s": 7, "max_ongoing_requests": 9}}
    target = chain(build(config))[1]
    assert target.num_replicas == 3
    assert target.max_ongoing_requests == 9
    assert target._deployment_config.health_check_period_s == 1
    assert target._deployment_config.graceful_shutdown_timeout_s > 7


def test_every_replica_is_bound_to_its_pool() -> None:
    for each, pool in zip(chain(build({})), ("gateway", "target", "drafter"), strict=True):
        assert each.ray_actor_options["label_selector"] == {POOL_LABEL: pool}


def test_resources_reach_ray_and_the_placement_check_alike() -> None:
    resources = Resources(num_cpus=2, num_gpus=0.5, memory_bytes=10, custom={"slot": 1}, accelerator_type="H100")
    options = actor_options(ReplicaSettings(pool="p", resources=resources))
    assert options == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 10,
        "resources": {"slot": 1},
        "accelerator_type": "H100",
        "label_selector": {POOL_LABEL: "p"},
    }
    assert resources.by_ray_name() == {"CPU": 2, "GPU": 0.5, "memory": 10, "slot": 1, "accelerator_type:H100": 0.001}


def test_no_pool_means_no_selector() -> None:
    assert "label_selector" not in actor_options(ReplicaSettings(pool=None))


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidField, match=r"target\.settings\.kv_tokens"):
        build({"target": {"settings": {"kv_tokens": 3}}})


def test_building_loads_no_model_library() -> None:
    import subprocess

    code = "import sys, paceline.app as app; app.build({}); print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_demands_are_those_of_the_parts() -> None:
    demands = parse({"target": {"replicas": 2, "resources": {"num_gpus": 1}}}).demands()
    assert [(each.service, each.replicas, each.pool, dict(each.each)) for each in demands] == [
        ("gateway", 1, "gateway", {}),
        ("target", 2, "target", {"GPU": 1}),
        ("drafter", 1, "drafter", {}),
    ]
