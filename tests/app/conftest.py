"""One Ray cluster for every test of this folder that needs nodes of a certain kind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from app import cluster as cluster_module
from paceline.cli.local_cluster import LocalCluster, NodePlan, cluster_environment
from paceline.cli.ports import free_ports


@dataclass(frozen=True)
class FakeCluster:
    """A running cluster: two target nodes with a slot each, and one drafter node with a GPU that Ray believes in."""

    address: str


@pytest.fixture(scope="module")  # its memory is not held for tests of other modules
def fake_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    import shutil
    import tempfile
    from pathlib import Path

    run_dir = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))  # sockets below it need a short path
    environment = cluster_environment(run_dir, free_ports(4))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    before = dict(os.environ)
    os.environ.update(environment)
    nodes = [
        NodePlan("gateway", 2),
        NodePlan("target", 2, resources={"target_slot": 1}),
        NodePlan("drafter", 2, num_gpus=1),
    ]
    try:
        with LocalCluster(nodes, environment, run_dir / "nodes.log") as cluster:
            address = cluster.wait_ready()
            import ray
            from ray import serve

            ray.cloudpickle.register_pickle_by_value(cluster_module)
            ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
            try:
                serve.start(proxy_location="Disabled")
                yield FakeCluster(address)
            finally:
                serve.shutdown()
                ray.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(run_dir, ignore_errors=True)
