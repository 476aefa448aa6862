"""A Ray cluster on this machine with one node per pool, ended with everything it started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paceline.errors import Unavailable

END_S = 20.0  # the keeper needs a few seconds; far beyond them it is killed


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node to start. Counts are what Ray hands out, not a limit on what its processes use."""

    pool: str
    num_cpus: int
    num_gpus: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)  # custom resources by name


class LocalCluster:
    """The nodes, held by a keeper process. Leaving the `with` block ends them; so does the death of this process."""

    def __init__(self, nodes: Sequence[NodePlan], environment: Mapping[str, str], log: Path) -> None:
        """`nodes`: the head first. `environment`: of every process of the cluster. `log`: file for what they print."""
        self._log = log
        command = [sys.executable, "-m", "paceline.cli.keeper", sys.executable, "-m", "paceline.cli.nodes"]
        with log.open("ab") as sink:
            self._keeper = subprocess.Popen(
                [*command, json.dumps([asdict(node) for node in nodes])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C in the terminal is for us alone
            )

    def wait_ready(self, on_node: Callable[[str], None] = lambda pool: None) -> str:
        """Waits for every node; returns the cluster's address. Raises Unavailable with the reason if one fails."""
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            if not line.startswith(b"{"):
                continue  # Ray prints there too
            event = json.loads(line)
            if "ready" in event:
                return str(event["ready"])
            if "failed" in event:
                raise Unavailable(f"the local Ray cluster did not start: {event['failed']} (see {self._log})")
            on_node(event["node"])
        raise Unavailable(f"the local Ray cluster ended while it started (see {self._log})")

    @property
    def running(self) -> bool:
        """Whether the keeper, and so the cluster, is there."""
        return self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """Process that every process of the cluster descends from."""
        return self._keeper.pid

    def stop(self) -> None:
        """Ends every process of the cluster and returns when they are gone. May be called twice."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(END_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def cluster_environment(run_dir: Path, ports: Sequence[int]) -> dict[str, str]:
    """Environment of a local cluster's processes and of the process that drives it.

    `run_dir` takes everything Ray and HAProxy write; `ports`: four free ports that nobody connects to by number
    (HAProxy metrics and statistics, Serve's fallback proxies for HTTP and gRPC).
    """
    metrics, stats, fallback_http, fallback_grpc = ports
    haproxy = run_dir / "h"  # short: see SHORT_PATH
    return {
        **os.environ,
        **SERVE_ENVIRONMENT,
        # Own folders and ports, so that nothing meets another cluster on this machine.
        "RAY_TMPDIR": str(run_dir),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    }


# What every process of a Ray cluster that serves Paceline should have; deploy/kuberay repeats it.
SERVE_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # a local cluster would otherwise write a token that later ones on this host pick up
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # the default Python proxy loses cancels and is four times slower
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",  # a reload cuts streams older than this
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
