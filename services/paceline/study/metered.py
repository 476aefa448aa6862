"""A runner that adds up what its passes would take if each sequence ran alone."""

from __future__ import annotations

import math
import time

from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelRunner, PassRows


class MeteredRunner:
    """Passes through to a runner; `seconds` grows by the measured cost of each segment as a pass of its own.

    A study packs sessions to be done sooner, and yet reports what one session alone would see. NaN once a pass has run
    whose cost is not known.
    """

    def __init__(self, runner: ModelRunner) -> None:
        """Starts at 0 seconds."""
        self._runner = runner
        self.info, self.kv, self.costs = runner.info, runner.kv, runner.costs
        self.seconds = 0.0
        self.passes = 0
        self._ran_s = 0.0  # in passes, as they came

    def execute(self, plan: PassPlan) -> PassRows:
        """Runs the plan."""
        self.seconds += sum(self.costs.seconds(len(segment)) or math.nan for segment in plan.segments)
        self.passes += len(plan.segments)
        started = time.perf_counter()
        rows = self._runner.execute(plan)
        self._ran_s += time.perf_counter() - started
        return rows

    def clock(self) -> float:
        """Seconds of everything, with passes at their measured cost instead of the time they took here."""
        return time.perf_counter() - self._ran_s + self.seconds
