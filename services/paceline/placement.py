"""Whether the replicas of an application fit the nodes of a cluster, and what is missing where they do not.

Ray Serve leaves a replica that fits nowhere pending without an end. This says so before anything is deployed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

POOL_LABEL = "paceline.dev/pool"  # node label that names a node's pool


@dataclass(frozen=True, slots=True)
class Node:
    """A live node of the cluster."""

    name: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]  # in all, by Ray's names: "CPU", "GPU", "memory" in bytes, custom ones


@dataclass(frozen=True, slots=True)
class Demand:
    """Replicas of one service."""

    service: str  # the service's field in the settings, for example "target"
    replicas: int
    pool: str | None  # None: any node
    each: Mapping[str, float] = field(default_factory=dict)  # what one replica asks, by Ray's names


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A service that does not fit."""

    service: str
    fitting: int  # replicas that have a place
    wanted: int
    reason: str  # names the pool or the resource, what is asked and what there is


def shortfalls(demands: Sequence[Demand], nodes: Sequence[Node]) -> list[Shortfall]:
    """Every service that does not fit `nodes` whole, in the order of `demands`; earlier ones are placed first."""
    free = {node.name: dict(node.resources) for node in nodes}
    found = []
    for demand in demands:
        pool = [node for node in nodes if demand.pool is None or node.labels.get(POOL_LABEL) == demand.pool]
        placed = 0
        while (
            placed < demand.replicas and (taken := _place(demand.each, [free[node.name] for node in pool])) is not None
        ):
            for resource, amount in demand.each.items():
                taken[resource] = taken.get(resource, 0) - amount
            placed += 1
        if placed < demand.replicas:
            reason = _no_pool(demand, nodes) if not pool else _missing(demand, pool, [free[node.name] for node in pool])
            found.append(Shortfall(demand.service, placed, demand.replicas, reason))
    return found


def _place(asked: Mapping[str, float], free: list[dict[str, float]]) -> dict[str, float] | None:
    for node in free:
        if all(node.get(resource, 0) >= amount - 1e-9 for resource, amount in asked.items()):
            return node
    return None


def _no_pool(demand: Demand, nodes: Sequence[Node]) -> str:
    pools = sorted({node.labels[POOL_LABEL] for node in nodes if POOL_LABEL in node.labels})
    there = ", ".join(pools) if pools else f"none; start nodes with the label {POOL_LABEL}=NAME"
    return f"{demand.service}.pool: no such pool: {demand.pool!r}; pools of this cluster: {there}"


def _missing(demand: Demand, pool: Sequence[Node], free: list[dict[str, float]]) -> str:
    """Names the resource that no node of the pool has, or has left, enough of."""
    where = f"pool {demand.pool!r}" if demand.pool is not None else "this cluster"
    for resource, amount in demand.each.items():
        most = max(node.resources.get(resource, 0) for node in pool)
        if most < amount:
            return f"{demand.service}: a replica asks for {amount:g} {resource}; a node of {where} has at most {most:g}"
    for resource, amount in demand.each.items():
        left = max(node.get(resource, 0) for node in free)
        if left < amount:
            return (
                f"{demand.service}: a replica asks for {amount:g} {resource};"
                f" a node of {where} has at most {left:g} left beside the replicas that fit"
            )
    asked = ", ".join(f"{amount:g} {resource}" for resource, amount in demand.each.items())
    return f"{demand.service}: a replica asks for {asked}; no node of {where} has all of that left"
