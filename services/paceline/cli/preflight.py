"""What is checked and decided before anything is started or deployed."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable

from paceline.app_config import AppConfig, ReplicaSettings
from paceline.cli.local_cluster import NodePlan
from paceline.errors import Unavailable
from paceline.placement import Node, Shortfall, shortfalls
from paceline.runtime.shipped import comes_for


def check_models(app: AppConfig) -> None:
    """Every model is here and can be served, drafter and target share a tokenizer, and a distilled drafter is for it.

    Raises ModelNotFound, ModelUnsupported, ModelDamaged, TokenizerMismatch with the first difference, or InvalidField.
    """
    from paceline.runtime.store import default_store

    target = app.target.settings.model
    drafter = None
    if app.drafter is not None and app.drafter.settings.has_model:
        drafter = app.drafter.settings.model
    store = default_store()
    store.resolve(target)
    if drafter is None:
        return
    folder = store.resolve(drafter)
    if drafter == target or comes_for(drafter, target):
        return
    # Only where something is to be compared: torch and transformers take seconds to import.
    from paceline.runtime.drafter_fit import fit_drafter

    fit_drafter(folder, f"drafter {drafter}", target, store.resolve)


def check_placement(app: AppConfig, say: Callable[[str], None]) -> None:
    """The cluster we are connected to has a place for the application.

    Raises Unavailable where a service has none at all, naming the pool or the resource; says so where only some of its
    replicas do, since nodes may still come.
    """
    for shortfall in shortfalls(app.demands(), cluster_nodes()):
        if shortfall.fitting == 0:
            raise Unavailable(shortfall.reason)
        say(_pending(shortfall))


def cluster_nodes() -> list[Node]:
    """Live nodes of the cluster we are connected to."""
    import ray

    return [
        Node(str(node["NodeID"]), dict(node.get("Labels", {})), dict(node["Resources"]))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _pending(shortfall: Shortfall) -> str:
    rest = shortfall.wanted - shortfall.fitting
    return f"{rest} of {shortfall.wanted} replicas stay pending: {shortfall.reason}"


def on_this_machine(app: AppConfig) -> AppConfig:
    """`app` for a cluster of this machine alone: data plane on loopback, GPUs asked for where there are some."""
    update: dict[str, object] = {}
    if "host" not in app.data_plane.model_fields_set:
        update["data_plane"] = app.data_plane.model_copy(update={"host": "127.0.0.1"})
    if gpus():
        for name in ("target", "drafter"):
            part = app.parts.get(name)
            if part is not None and _wants_gpu(name, app) and not part.resources.num_gpus:
                # Ray hides the GPUs from a replica that asks for none, which would then silently compute on the CPU.
                resources = part.resources.model_copy(update={"num_gpus": 1.0})
                update[name] = part.model_copy(update={"resources": resources})
    return app.model_copy(update=update)


def _wants_gpu(name: str, app: AppConfig) -> bool:
    if name == "drafter":
        settings = None if app.drafter is None else app.drafter.settings
        return settings is not None and settings.has_model and settings.device != "cpu"
    return app.target.settings.device != "cpu"


def plan_nodes(app: AppConfig) -> list[NodePlan]:
    """Nodes of a local cluster for `app`, one per pool, the gateway's first since it becomes the head.

    They share one machine, so each offers all of its CPUs and as much more as its replicas ask for; GPUs are real: a
    node offers those of the machine, and asking for more is refused when the replicas are placed.
    """
    pools: dict[str, list[ReplicaSettings]] = {}
    for part in app.parts.values():
        pools.setdefault(part.pool or app.gateway.pool or "any", []).append(part)
    plans = []
    for pool, parts in pools.items():
        asked = sum(part.replicas * part.resources.num_cpus for part in parts)
        custom: dict[str, float] = {}
        for part in parts:
            for resource, amount in part.resources.custom.items():
                custom[resource] = custom.get(resource, 0) + part.replicas * amount
        wants_gpus = any(part.resources.num_gpus for part in parts)
        cpus = max(os.cpu_count() or 1, math.ceil(asked))
        plans.append(NodePlan(pool, cpus, len(gpus()) if wants_gpus else 0, custom))
    return plans


def gpus() -> list[str]:
    """GPUs of this machine that this process may use, by what CUDA_VISIBLE_DEVICES or the driver calls them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    return [str(index) for index, line in enumerate(listing.splitlines()) if line.startswith("GPU ")]
