"""Whether systems give the tokens of our own plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.speculation.sampling import SamplingParams
from paceline.study.equality import Judge
from paceline.study.peers import Decoded


@dataclass(frozen=True, slots=True)
class Equal:
    """Outcome over all prompts; `near_ties` and `faults` are of the replies that are not equal, None if not judged."""

    equal: int
    near_ties: int | None
    faults: int | None


class RunnerRows:
    """Rows of a runner, computed in two ways: what a format rounds otherwise in passes of another shape shows there."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def row(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` from one pass: [vocab] float32."""
        return self._after((), tokens)

    def row_cached(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` with the last token in a pass of its own: [vocab] float32."""
        return self._after(tokens[:-1], tokens[-1:])

    def _after(self, committed: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        kv = self._runner.kv
        sequence = kv.open(reserve_tokens=len(committed) + len(tokens))
        try:
            if committed:
                self._runner.execute(PassPlan((Segment.chain(sequence, committed, last_row=False),)))
                kv.keep(sequence, range(len(committed)))
            rows = self._runner.execute(PassPlan((Segment.chain(sequence, tokens, last_row=True),)))
            return rows.logits(0, len(tokens) - 1).clone().cpu()
        finally:
            kv.release(sequence)


def compared(
    replies: Sequence[Decoded],
    references: Sequence[Decoded],
    prompts: Sequence[Sequence[int]],
    eos: frozenset[int],
    judge: Judge | None,
) -> Equal:
    """Greedy replies beside those of our own plain decoding, prompt by prompt.

    Args:
        replies: of a system; the end token may be left out.
        references: of our own plain decoding.
        prompts: their prompts.
        eos: end tokens.
        judge: decides whether a first difference is a near-tie; None leaves it open.
    """
    equal = near = faults = 0
    for reply, reference, prompt in zip(replies, references, prompts, strict=True):
        ours, theirs = _ended(reply.tokens, eos), _ended(reference.tokens, eos)
        if ours == theirs:
            equal += 1
            continue
        if judge is None:
            continue
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        pair = [each[at] if at < len(each) else min(eos, default=0) for each in (ours, theirs)]
        if judge.near_tie([*prompt, *ours[:at]], pair[0], pair[1], SamplingParams()):
            near += 1
        else:
            faults += 1
    return Equal(equal, None, None) if judge is None else Equal(equal, near, faults)


def _ended(tokens: Sequence[int], eos: frozenset[int]) -> tuple[int, ...]:
    """Without the end token."""
    return tuple(tokens[:-1]) if tokens and tokens[-1] in eos else tuple(tokens)
