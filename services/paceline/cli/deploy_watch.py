"""Waits until a deployed application runs, telling what it waits for, and tells why it never will."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.cli.preflight import cluster_nodes
from paceline.cli.progress import Progress
from paceline.cli.ray_errors import deepest
from paceline.cli.stop_signal import Stopped, StopSignal
from paceline.errors import Unavailable
from paceline.placement import Demand, shortfalls

POLL_S = 1.0  # asking costs driver and controller tens of milliseconds of CPU that the replicas need to start
REMIND_AFTER_S = 20.0  # a replica that is still nowhere by then is asked about again


class DeployWatch:
    """Follows one application's status."""

    def __init__(self, name: str, demands: Sequence[Demand], progress: Progress, stop: StopSignal) -> None:
        self._name, self._demands, self._progress, self._stop = name, demands, progress, stop

    def wait_running(self) -> None:
        """Returns when every replica runs. Raises Unavailable with the replica's own error if the deployment failed."""
        told, waited, next_reminder = "", 0.0, REMIND_AFTER_S
        while True:
            status = self._stop.call(self._status)
            if status is not None and status.status == "RUNNING":
                return
            if status is not None and status.status == "DEPLOY_FAILED":
                raise Unavailable(f"the application did not start: {reason(status)}")
            counts = "" if status is None else counted(status)
            if counts and counts != told:
                self._progress.detail(counts)
                told = counts
            waited += POLL_S
            if waited >= next_reminder:
                next_reminder *= 2
                for shortfall in shortfalls(self._demands, self._stop.call(cluster_nodes)):
                    self._progress.say(f"still pending: {shortfall.reason}")
            if self._stop.wait(POLL_S):
                raise Stopped

    def _status(self) -> Any:
        from ray import serve

        return serve.status().applications.get(self._name)


def counted(status: Any) -> str:
    """Running replicas of each deployment, for example "Drafter 1, Target starting"."""
    parts = []
    for name, deployment in sorted(status.deployments.items()):
        states = {str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()}
        others = [f"{count} {state.lower()}" for state, count in states.items() if state != "RUNNING" and count]
        parts.append(f"{name} {states.get('RUNNING', 0)} running" + (f", {', '.join(others)}" if others else ""))
    return "; ".join(parts)


def reason(status: Any) -> str:
    """The error that made an application fail, in one line."""
    failed = [each.message for each in status.deployments.values() if each.status in ("DEPLOY_FAILED", "UNHEALTHY")]
    return deepest([*failed, status.message])
