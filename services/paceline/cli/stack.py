"""A running Paceline on Ray: started step by step, ended whole.

On this machine: own Ray nodes, one per pool, all of them ended afterwards. On a cluster that is joined: only the
application is added and removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cli.deploy_watch import DeployWatch
from paceline.cli.local_cluster import SERVE_ENVIRONMENT, LocalCluster, cluster_environment
from paceline.cli.ports import free_ports, require_free
from paceline.cli.preflight import check_models, check_placement, on_this_machine, plan_nodes
from paceline.cli.progress import Progress
from paceline.cli.serve_options import SERVICER_FUNCTION, ServeOptions
from paceline.cli.stop_signal import StopSignal
from paceline.errors import InvalidField, Unavailable

CLEAN_END_S = 8.0  # for Serve to end its replicas in order, before the nodes are ended under it
STEP_END_S = 4.0  # of which for a step that was cut short on a cluster that is joined
HIDDEN_PORTS = 4
SHORT_PATH = 8  # longest folder to put the run folder in: HAProxy's socket below it may have 97 characters in all


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a started stack is reached."""

    grpc: str  # host:port
    http: str  # host:port
    ray: str  # address of the Ray cluster


class Stack:
    """One application on one cluster. `start`, then `stop`, which is safe at any moment and may be called twice."""

    def __init__(self, options: ServeOptions, progress: Progress, stop: StopSignal) -> None:
        self.options, self._progress, self._stop = options, progress, stop
        self._cluster: LocalCluster | None = None
        self._connected = self._deployed = self._own_serve = False
        self.run_dir = _run_dir()

    def start(self) -> Ready:
        """Starts everything and returns when the application answers. Raises a PacelineError, or Stopped."""
        options = self.options
        self._progress.step("checking models and ports")
        for field, port in (("--http-port", options.http_port), ("--grpc-port", options.grpc_port)):
            if options.ray_address is None:
                require_free(field, port, options.host)
        self._stop.call(lambda: check_models(options.app))
        if options.ray_address is None:
            self.options = options = replace(options, app=on_this_machine(options.app))
        address = options.ray_address or self._start_nodes()
        self._progress.step("connecting to Ray")
        self._connected = True
        address = self._stop.call(lambda: _connect(address))
        self._stop.call(lambda: check_placement(options.app, self._progress.say))
        self._progress.step("starting Ray Serve")
        self._stop.call(self._start_serve)
        self._progress.step("deploying gateway, target and drafter")
        self._deployed = True
        self._stop.call(lambda: _deploy(options))
        DeployWatch(options.name, options.app.demands(), self._progress, self._stop).wait_running()
        grpc_address = f"{_reachable(options.host)}:{options.grpc_port}"
        self._progress.step("waiting for the first answer")
        self._stop.call(lambda: _wait_for_answer(grpc_address, options.name))
        self._progress.done()
        return Ready(grpc_address, f"{_reachable(options.host)}:{options.http_port}", address)

    @property
    def started(self) -> bool:
        """Whether anything was begun that may have left logs."""
        return self._cluster is not None or self._connected

    def fault(self) -> str | None:
        """What ended the stack from outside, None while it runs."""
        if self._cluster is not None and not self._cluster.running:
            return f"the local Ray cluster has ended (see {self.run_dir})"
        return None

    def stop(self, *, keep_logs: bool = False) -> None:
        """Ends what `start` began. With `keep_logs` the run folder stays, for someone to look at."""
        if self._connected:
            within(CLEAN_END_S, self._leave)
        if self._cluster is not None:
            self._cluster.stop()
        self._connected = self._deployed = False
        if not keep_logs:
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _leave(self) -> None:
        """Takes the application away, Serve too if it was not there before us, and disconnects.

        Ray is not shut down under a step that was cut short: the step's next call would end this process with an exit
        code of Ray's own, or start a cluster that nobody ends. Its own nodes are then ended as they are.
        """
        step = self._stop.left
        if step is not None:
            if self._cluster is not None:
                return
            step.join(STEP_END_S)
        import ray
        from ray import serve

        if self._cluster is None and self._deployed:
            serve.delete(self.options.name)
        if self._cluster is not None or (self._own_serve and not serve.status().applications):
            serve.shutdown()
        if step is None or not step.is_alive():
            ray.shutdown()

    def _start_serve(self) -> None:
        """Starts Serve unless it runs."""
        from ray import serve

        options, there = self.options, serve.status()
        if options.name in there.applications:
            raise InvalidField("applications.0.name", options.name, "a name that is not deployed yet")
        self._own_serve = not there.proxies
        serve.start(
            proxy_location=options.proxy_location,
            http_options={"host": options.host, "port": options.http_port},
            grpc_options={
                "port": options.grpc_port,
                "grpc_servicer_functions": [SERVICER_FUNCTION],
                "request_timeout_s": options.request_timeout_s,
            },
        )

    def _start_nodes(self) -> str:
        self._progress.step("starting Ray nodes on this machine")
        environment = cluster_environment(self.run_dir, free_ports(HIDDEN_PORTS))
        os.environ.update(environment)  # Serve's client reads the same settings when it is imported
        self._cluster = LocalCluster(plan_nodes(self.options.app), environment, self.run_dir / "ray-nodes.log")
        cluster, tell = self._cluster, self._progress.detail
        return self._stop.call(lambda: cluster.wait_ready(lambda pool: tell(f"node of pool {pool} is up")))


def within(seconds: float, function: Callable[[], None]) -> bool:
    """Runs `function` in a thread for at most `seconds`; True if it ended. Errors are dropped: this is for endings."""

    def run() -> None:
        with contextlib.suppress(Exception):
            function()

    thread = threading.Thread(target=run, daemon=True, name="ending")
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _run_dir() -> Path:
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="paceline-", dir=base if len(base) <= SHORT_PATH else "/tmp"))


def _reachable(host: str) -> str:
    """An address for a client on this machine."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _connect(address: str) -> str:
    import ray

    for name, value in SERVE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        context = ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        raise Unavailable(f"no Ray cluster at {address}: {' '.join(str(error).split())[:300]}") from None
    return str(context.address_info["gcs_address"])


def _deploy(options: ServeOptions) -> None:
    from ray import serve

    from paceline.app import build

    target = serve.RunTarget(
        build(options.app),
        name=options.name,
        route_prefix=options.route_prefix,
        logging_config=dict(options.logging_config) if options.logging_config else None,
    )
    # Not waiting here: Serve waits without an end and without a word where a replica fits nowhere.
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _wait_for_answer(address: str, application: str) -> None:
    """The ingress learns of a running application a moment after Serve says it runs."""
    import grpc

    from paceline.v1 import inference_pb2, inference_pb2_grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        inference_pb2_grpc.InferenceServiceStub(channel).GetModelInfo(
            inference_pb2.GetModelInfoRequest(),
            timeout=60,
            wait_for_ready=True,
            metadata=[("application", application)],
        )
