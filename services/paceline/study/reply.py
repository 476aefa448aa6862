"""Plain replies of a model: the contexts that studies look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner
from paceline.speculation.choices import SeededChoices
from paceline.speculation.rows import process
from paceline.speculation.sampling import SamplingParams

READ_TOKENS = 256  # of a prompt in one pass


def plain_replies(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    new_tokens: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Decodes every prompt without a drafter, all in one pass a token, to an end token or `new_tokens`.

    Prompt number i is sampled with seed `params.seed + i`. `progress` is told how many tokens a reply has.
    """
    kv = runner.kv
    sequences: list[int] = []
    choices = [SeededChoices(replace(params, seed=params.seed + number)) for number in range(len(prompts))]
    replies: list[list[int]] = [[] for _ in prompts]
    try:
        for prompt in prompts:
            sequences.append(kv.open(reserve_tokens=len(prompt) + new_tokens))
            for start in range(0, len(prompt) - 1, READ_TOKENS):
                chunk = prompt[start : min(start + READ_TOKENS, len(prompt) - 1)]
                runner.execute(PassPlan((Segment.chain(sequences[-1], list(chunk), last_row=False),)))
                kv.keep(sequences[-1], range(len(chunk)))
        going = list(range(len(prompts)))
        for length in range(new_tokens):
            if not going:
                break
            last = [replies[number][-1] if length else prompts[number][-1] for number in going]
            segments = (
                Segment.chain(sequences[number], [token], last_row=True)
                for number, token in zip(going, last, strict=True)
            )
            rows = runner.execute(PassPlan(tuple(segments)))
            for index, number in enumerate(going):
                kv.keep(sequences[number], [0])
                row = process(rows.logits(index, 0), params, runner.info.vocab_size)
                replies[number].append(choices[number].draw(row, len(prompts[number]) + length))
            going = [number for number in going if replies[number][-1] not in runner.info.eos_token_ids]
            progress(length + 1)
    finally:
        for sequence in sequences:
            kv.release(sequence)
    return replies
