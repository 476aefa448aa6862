"""Timing of packed passes beside bare transformers forwards of as many tokens, all number formats in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.speculation.tree import IntArray
from paceline.study.bare import BareModel, CachedPrefix
from paceline.study.ratios import turned

WARM_TOKENS = 64  # up to so many tokens a pass follows an untimed one of its kind, as it does in decoding

Cell = tuple[int, int]  # sessions, tokens of each
Timer = Callable[[], float]  # runs a pass once and returns its seconds


@dataclass(frozen=True, slots=True)
class PassSettings:
    """What to measure."""

    model: Path
    dtypes: Sequence[str]
    tokens: Sequence[int] = (1, 2, 4, 8, 12, 16, 32)  # of each session in a pass
    sessions: Sequence[int] = (1, 4, 16)
    context: int = 256  # committed tokens of each session before them
    rounds: int = 12  # runs of everything
    threads: int = 2
    device: str = "auto"
    measure_s: float = 2.0  # spent on the table of pass costs, after which passes are padded

    @property
    def cells(self) -> list[Cell]:
        """All sizes of a pass."""
        return list(product(self.sessions, self.tokens))

    @property
    def kv_tokens(self) -> int:
        """KV slots that the largest pass needs, whole pages for each session."""
        return (max(self.sessions) + 1) * (self.context + max(self.tokens) + 32)

    def text(self) -> IntArray:
        """[context + most tokens] int32: what every session holds and runs. Which tokens it is does not matter."""
        most = max(self.tokens)
        return np.random.default_rng(0).integers(0, 64, size=self.context + most).astype(np.int32)


class PackedSessions:
    """Sessions of one runner with the same committed context, below which blocks are run again and again."""

    def __init__(self, runner: ModelRunner, settings: PassSettings) -> None:
        """Reads the context once and copies it."""
        self.runner = runner
        text, most = settings.text(), max(settings.tokens)
        self._block = text[settings.context :]
        room = settings.context + most
        self._sequences = [runner.kv.open(reserve_tokens=room) for _ in range(max(settings.sessions))]
        first, *others = self._sequences
        runner.execute(PassPlan((Segment.chain(first, text[: settings.context], last_row=False),)))
        runner.kv.keep(first, range(settings.context))
        for other in others:
            runner.kv.copy_prefix(first, other, settings.context)

    def plan(self, cell: Cell) -> PassPlan:
        """A chain in each session, every row wanted, as verification wants it."""
        sessions, tokens = cell
        parents, rows = np.arange(-1, tokens - 1, dtype=np.int32), tuple(range(tokens))
        return PassPlan(
            tuple(Segment(each, self._block[:tokens], parents, rows) for each in self._sequences[:sessions])
        )

    def timer(self, cell: Cell) -> Timer:
        """Of one pass."""
        plan = self.plan(cell)

        def run() -> float:
            start = time.perf_counter()
            self.runner.execute(plan)
            return time.perf_counter() - start

        return run


def measure_passes(
    settings: PassSettings,
    packed: Mapping[str, PackedSessions],
    bare: Mapping[str, BareModel],
    progress: Callable[[str], None],
) -> dict[str, dict[Cell, list[float]]]:
    """Seconds of every pass by variant and cell, one a round.

    In every round each cell runs every variant, in an order that turns from round to round: drift falls on all alike.

    Args:
        settings: what to measure.
        packed: our runners by format; their variants are called as the formats.
        bare: transformers' models by format; their variants are called "bare" and the format.
        progress: told the rounds.
    """
    text = settings.text()
    prefix, block = text[: settings.context].tolist(), text[settings.context :].tolist()
    found: dict[str, dict[Cell, list[float]]] = {}
    with ExitStack() as stack:
        timers: dict[Cell, dict[str, Timer]] = {}
        caches: dict[tuple[str, int], CachedPrefix] = {
            (name, sessions): stack.enter_context(model.prefilled(prefix, sessions))
            for name, model in bare.items()
            for sessions in settings.sessions
        }
        for cell in settings.cells:
            sessions, tokens = cell
            own = {dtype: each.timer(cell) for dtype, each in packed.items()}
            theirs = {f"bare {name}": _bare_timer(caches[name, sessions], block[:tokens]) for name in bare}
            timers[cell] = own | theirs
        for number in range(settings.rounds + 1):  # the first one warms up
            for cell, variants in timers.items():
                progress(f"round {number} of {settings.rounds}: {cell[0]} sessions of {cell[1]} tokens")
                for name in turned(list(variants), number):
                    if cell[0] * cell[1] <= WARM_TOKENS:
                        variants[name]()
                    taken_s = variants[name]()
                    if number:
                        found.setdefault(name, {}).setdefault(cell, []).append(taken_s)
    return found


def _bare_timer(cached: CachedPrefix, block: Sequence[int]) -> Timer:
    return lambda: cached.timed(block)
