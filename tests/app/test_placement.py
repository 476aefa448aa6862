"""Case G5 as arithmetic: each replica only on its pool, and what does not fit names what is missing."""

from __future__ import annotations

import pytest

from paceline.placement import POOL_LABEL, Demand, Node, shortfalls


def node(name: str, pool: str | None, **resources: float) -> Node:
    return Node(name, {} if pool is None else {POOL_LABEL: pool}, resources)


NODES = [node("head", None, CPU=2), node("t", "target", CPU=4, GPU=1, target_slot=1), node("d", "drafter", CPU=2)]


def test_what_fits_has_no_shortfall() -> None:
    demands = [Demand("target", 1, "target", {"GPU": 1, "CPU": 4}), Demand("drafter", 2, "drafter", {"CPU": 1})]
    assert shortfalls(demands, NODES) == []


def test_a_replica_without_demands_fits_any_number_of_times() -> None:
    assert shortfalls([Demand("target", 1000, "target")], NODES) == []


def test_an_unknown_pool_is_named_with_those_there_are() -> None:
    (found,) = shortfalls([Demand("drafter", 1, "gpu-pool", {})], NODES)
    assert found.fitting == 0
    assert found.reason == "drafter.pool: no such pool: 'gpu-pool'; pools of this cluster: drafter, target"


def test_a_cluster_without_labels_says_how_to_label() -> None:
    (found,) = shortfalls([Demand("drafter", 1, "drafter", {})], [node("head", None, CPU=8)])
    assert f"start nodes with the label {POOL_LABEL}=NAME" in found.reason


def test_a_second_target_on_one_slot_stays_out() -> None:
    (found,) = shortfalls([Demand("target", 2, "target", {"target_slot": 1})], NODES)
    assert (found.fitting, found.wanted) == (1, 2)
    assert "asks for 1 target_slot" in found.reason
    assert "at most 0 left" in found.reason


def test_a_gpu_on_a_pool_without_one_is_missing_although_another_pool_has_it() -> None:
    (found,) = shortfalls([Demand("drafter", 1, "drafter", {"GPU": 1})], NODES)
    assert found.fitting == 0
    assert found.reason == "drafter: a replica asks for 1 GPU; a node of pool 'drafter' has at most 0"


def test_two_fractions_that_exceed_one_gpu() -> None:
    (found,) = shortfalls([Demand("target", 2, "target", {"GPU": 0.6})], NODES)
    assert found.fitting == 1
    assert "asks for 0.6 GPU" in found.reason
    assert "at most 0.4 left" in found.reason


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
def test_fractions_that_add_up_fit(share: float) -> None:
    assert shortfalls([Demand("target", round(1 / share), "target", {"GPU": share})], NODES) == []


def test_services_that_share_a_pool_share_its_resources() -> None:
    demands = [Demand("target", 1, "target", {"CPU": 3}), Demand("drafter", 1, "target", {"CPU": 2})]
    (found,) = shortfalls(demands, NODES)
    assert found.service == "drafter"
    assert "at most 1 left" in found.reason


def test_resources_spread_over_nodes_are_no_place() -> None:
    nodes = [node("a", "target", CPU=4), node("b", "target", GPU=1)]
    (found,) = shortfalls([Demand("target", 1, "target", {"CPU": 2, "GPU": 1})], nodes)
    assert found.fitting == 0
    assert "no node of pool 'target' has all of that" in found.reason


def test_no_pool_means_any_node() -> None:
    assert shortfalls([Demand("gateway", 4, None, {"CPU": 2})], NODES) == []
