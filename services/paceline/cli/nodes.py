"""Starts the Ray nodes of a local cluster and holds them until standard input closes.

    python -m paceline.cli.nodes PLAN

PLAN is JSON, a list of nodes with the head first: `[{"pool": "gateway", "num_cpus": 2, "num_gpus": 0}, ...]`. Progress
goes to standard output, one JSON object a line: `{"node": POOL}`, then `{"ready": ADDRESS}` or `{"failed": TEXT}`.
Run under `paceline.cli.keeper`, which also ends what this process cannot.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

from paceline.placement import POOL_LABEL

OBJECT_STORE_BYTES = 80 << 20  # the least Ray takes is 75 MiB; nothing large goes through it here


def main(plan: list[dict[str, Any]]) -> int:
    """Starts the nodes of `plan` and waits. Returns 0 after a clean end, 1 if a node did not start."""
    closed = threading.Event()
    threading.Thread(target=_wait_for_close, args=(closed,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # A node per pool on one machine, which `ray start` cannot do without fixed ports of its own.
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for node in plan:
            head = {} if cluster.head_node else {"include_dashboard": False, "no_monitor": True}
            cluster.add_node(
                num_cpus=node["num_cpus"],
                num_gpus=node["num_gpus"],
                resources=node.get("resources") or {},
                labels={POOL_LABEL: node["pool"]},
                object_store_memory=OBJECT_STORE_BYTES,
                include_log_monitor=False,
                dashboard_agent_listen_port=None,  # any free one; the default is the same for every cluster
                **head,
            )
            _tell(node=node["pool"])
        _tell(ready=cluster.address)
        closed.wait()
    except Exception as error:  # whatever Ray raises is told to the one who waits
        _tell(failed=f"{type(error).__name__}: {error}")
        return 1
    finally:
        cluster.shutdown()
    return 0


def _wait_for_close(closed: threading.Event) -> None:
    sys.stdin.buffer.read()
    closed.set()


def _tell(**event: str) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
