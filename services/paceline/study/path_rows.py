"""A model's rows below paths of tokens from one context: what drafting and judging a tree both need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.speculation.select import Path

CHUNK = 256  # tokens of a context that one pass reads


class PathRows:
    """One sequence of a runner. Its KV is kept as far as the next context agrees with the last one.

    `logits` holds a row for each path that was looked below, in float32: `logits[()]` is the context's own.
    """

    def __init__(self, runner: ModelRunner) -> None:
        """Opens a sequence, which `close` ends."""
        self.runner = runner
        self.logits: dict[Path, torch.Tensor] = {}
        self._sequence = runner.kv.open()
        self._tokens: list[int] = []
        self._scratch: dict[Path, int] = {}

    def move(self, context: Sequence[int]) -> None:
        """Goes to a context of at least one token; rows of the last one are forgotten."""
        move_all(self.runner, [(self, context)])

    def look(self, paths: Sequence[Path], wanted: Iterable[Path] | None = None) -> None:
        """One pass over the ends of `paths`; see `look_below`."""
        look_below(self.runner, [(self, paths, None if wanted is None else set(wanted))])

    def close(self) -> None:
        """Gives the sequence's KV back."""
        self.runner.kv.release(self._sequence)

    def _rewind(self, context: Sequence[int]) -> list[int]:
        """Keeps what the context shares with the last one, reads all but a chunk of the rest, and returns that."""
        kv = self.runner.kv
        kv.drop_scratch(self._sequence)
        shared = 0
        for ours, theirs in zip(self._tokens, context[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        kv.truncate(self._sequence, shared)
        while len(context) - shared > CHUNK:
            chunk = list(context[shared : shared + CHUNK])
            self.runner.execute(PassPlan((Segment.chain(self._sequence, chunk, last_row=False),)))
            kv.keep(self._sequence, range(len(chunk)))
            shared += len(chunk)
        self._tokens, self._scratch = list(context), {}
        return list(context[shared:])

    def _segment(self, paths: Sequence[Path], wanted: set[Path] | None) -> Segment:
        base = len(self._scratch)
        for path in paths:
            self._scratch[path] = len(self._scratch)
        parents = [self._scratch[path[:-1]] if len(path) > 1 else -1 for path in self._scratch]
        return Segment(
            self._sequence,
            np.asarray([path[-1] for path in paths], dtype=np.int32),
            np.asarray(parents, dtype=np.int32),
            tuple(base + number for number, path in enumerate(paths) if wanted is None or path in wanted),
        )


def move_all(runner: ModelRunner, contexts: Sequence[tuple[PathRows, Sequence[int]]]) -> None:
    """Moves several sequences of one runner to a context each, in one pass where little is new."""
    chunks = [rows._rewind(context) for rows, context in contexts]
    segments = [
        Segment.chain(rows._sequence, chunk, last_row=True) for (rows, _), chunk in zip(contexts, chunks, strict=True)
    ]
    done = runner.execute(PassPlan(tuple(segments)))
    for number, ((rows, _), chunk) in enumerate(zip(contexts, chunks, strict=True)):
        runner.kv.keep(rows._sequence, range(len(chunk)))
        rows.logits = {(): done.logits(number, len(chunk) - 1).clone()}


def look_below(runner: ModelRunner, wanted: Sequence[tuple[PathRows, Sequence[Path], set[Path] | None]]) -> None:
    """One pass over the ends of paths of several sequences of one runner.

    Args:
        runner: theirs.
        wanted: for each sequence the paths to run, every parent before or among them and none of them run before, and
            those whose rows are wanted (None: all).
    """
    segments = [(rows, rows._segment(paths, chosen)) for rows, paths, chosen in wanted if paths]
    if not segments:
        return
    done = runner.execute(PassPlan(tuple(segment for _, segment in segments)))
    for number, (rows, segment) in enumerate(segments):
        paths = list(rows._scratch)
        for node in segment.rows:
            rows.logits[paths[node]] = done.logits(number, node).clone()
