"""Running a pass so that a session that cannot be computed takes no other with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner, PassRows
from paceline.target.session import Session
from paceline.target.turn import Turn, segment

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ran:
    """A turn that was computed."""

    turn: Turn
    rows: PassRows | None  # None where nothing had to be computed
    segment: int  # its index in the pass
    started: bool  # True for the first turn of its pass, so that passes can be counted


@dataclass(frozen=True, slots=True)
class Failed:
    """A turn whose computation raised, alone."""

    turn: Turn
    error: Exception


def execute(runner: ModelRunner, turns: Sequence[Turn]) -> Iterator[Ran | Failed]:
    """Computes the turns in one pass; if that raises, each in a pass of its own, so that only the culprits fail.

    Turns without a token come first: their row is held, and they need no pass.
    Settle each outcome before asking for the next. Raises whatever the KV integrity check finds after a failure.
    """
    for turn in turns:
        if not turn.tokens:
            yield Ran(turn, None, 0, started=False)
    turns = [turn for turn in turns if turn.tokens]
    if not turns:
        return
    try:
        rows = _run(runner, turns)
    except Exception as error:
        runner.kv.check_integrity()
        if len(turns) == 1:
            yield Failed(turns[0], error)
            return
        log.warning("a pass of %d sessions failed (%s); running them one by one", len(turns), error)
    else:
        for index, turn in enumerate(turns):
            yield Ran(turn, rows, index, started=index == 0)
        return
    for turn in turns:
        yield from execute(runner, [turn])


def _run(runner: ModelRunner, turns: Sequence[Turn]) -> PassRows:
    return runner.execute(PassPlan(tuple(segment(turn, _committed(runner, turn.session)) for turn in turns)))


def _committed(runner: ModelRunner, session: Session) -> int:
    assert session.sequence is not None
    return runner.kv.length(session.sequence)


def try_out(runner: ModelRunner) -> None:
    """Computes one plain token in a sequence of its own. Raises what the runner raises, or OutOfPages."""
    sequence = runner.kv.open(reserve_tokens=1)
    try:
        runner.execute(PassPlan((Segment.chain(sequence, np.zeros(1, dtype=np.int32), last_row=True),)))
    finally:
        runner.kv.release(sequence)
