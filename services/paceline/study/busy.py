"""A runner that knows how long it has been busy."""

from __future__ import annotations

import time

from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelRunner, PassRows


class BusyRunner:
    """Passes through to a runner and adds up the wall-clock seconds of its passes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.info, self.kv, self.costs = runner.info, runner.kv, runner.costs
        self.busy_s = 0.0
        self.passes = 0

    def execute(self, plan: PassPlan) -> PassRows:
        """Runs the plan."""
        started = time.perf_counter()
        rows = self._runner.execute(plan)
        self.busy_s += time.perf_counter() - started
        self.passes += 1
        return rows
