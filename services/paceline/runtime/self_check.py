"""Compares the packed pass with the model's own forward at load, so that no model is served wrong."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

import numpy as np
import torch

from paceline.errors import ModelUnsupported
from paceline.runtime.kv import OutOfPages
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner, PassRows
from paceline.runtime.weights import first_line

# Most that two rows may differ: four times what the model's own row differs by when more tokens run behind it, which
# changes kernels and nothing else, within these bounds. The measure is the spread of the difference as a share of the
# spread of the row, so that a shift of all logits does not count. On a trained model right passes were measured at
# 3e-6 in float32, 0.04 in bfloat16 and 8e-4 in int8; one wrong ancestor makes 0.14 or more.
NOISE_FACTOR = 4
ALLOWED = {"float32": (1e-4, 1e-3), "bfloat16": (0.05, 0.2), "int8": (0.01, 0.1), "int4": (0.05, 0.2)}
PREFIX, OTHER = 12, 3  # committed tokens of the sequence looked at, and tokens of another one in the same pass
BEHIND = 5  # tokens behind a path, to see what kernels do
PARENTS = (-1, 0, 0, 2)  # two siblings, the second with a child, so that ancestors are not neighbours


@torch.inference_mode()
def self_check(runner: ModelRunner, model: Any, attention: str, name: str) -> None:
    """Runs a small tree over a prefix, alone and behind another sequence, and its paths through the model itself.

    Args:
        runner: the packed pass.
        model: the same model of transformers; its attention is switched for the time of the check.
        attention: name of the packed attention, to switch back to.
        name: the model, for messages.

    Raises ModelUnsupported if they disagree, or if the pass cannot be run.
    """
    vocab = runner.info.vocab_size
    prefix = [(7 * i + 3) % vocab for i in range(max(1, min(PREFIX, runner.info.context_length - len(PARENTS))))]
    tokens = [(11 * i + 5) % vocab for i in range(len(PARENTS))]
    try:
        packed = _tree_rows(runner, prefix, tokens)
    except (OutOfPages, torch.OutOfMemoryError):
        raise
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{name}: {error}") from None
    except Exception as error:  # whatever a model of an unforeseen shape runs into
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelUnsupported(f"{name}: the packed pass cannot run this model ({reason})") from error
    model.set_attn_implementation("sdpa" if type(model)._supports_sdpa else "eager")
    try:
        noise, difference = 0.0, 0.0
        for node in range(len(tokens)):
            path = prefix + _path(tokens, node)
            own = _own_row(model, path, behind=0)
            noise = max(noise, _difference(own, _own_row(model, path, behind=BEHIND)))
            for segment, rows in enumerate(packed):
                difference = max(difference, _difference(own, rows.logits(segment, node)), key=_nan_last)
    finally:
        model.set_attn_implementation(attention)
    least, most = ALLOWED[runner.info.dtype]
    allowed = min(max(least, NOISE_FACTOR * noise), most)
    if not difference <= allowed:
        raise ModelUnsupported(
            f"{name}: the packed pass differs from the model's own forward by {difference:.2g} of the spread of its "
            f"logits (allowed: {allowed:.2g}); its attention is not plain causal attention, or it overflows"
        )


def _tree_rows(runner: ModelRunner, prefix: list[int], tokens: list[int]) -> tuple[PassRows, PassRows]:
    """Rows of the tree as segment 0, alone, and as segment 1, in company: attention has a way for each."""
    sequence, other = runner.kv.open(), runner.kv.open()
    try:
        runner.execute(PassPlan((Segment.chain(sequence, prefix, last_row=False),)))
        runner.kv.keep(sequence, range(len(prefix)))
        tree = Segment(sequence, np.asarray(tokens, np.int32), np.asarray(PARENTS, np.int32), tuple(range(len(tokens))))
        alone = runner.execute(PassPlan((tree,)))
        return alone, runner.execute(PassPlan((Segment.chain(other, prefix[:OTHER], last_row=False), tree)))
    finally:
        runner.kv.release(sequence)
        runner.kv.release(other)


def _path(tokens: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = PARENTS[node]
    return path[::-1]


def _own_row(model: Any, path: list[int], *, behind: int) -> torch.Tensor:
    """[vocab_padded] float32 after `path` by the model's own forward, with `behind` tokens more in it."""
    ids = torch.tensor([path + path[:1] * behind], device=model.device)
    row: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0, len(path) - 1]
    return row.float()


def _difference(own: torch.Tensor, other: torch.Tensor) -> float:
    """How far two rows, [vocab_padded] float32, are apart; NaN if one of them has NaN."""
    return float((own - other).std() / (own.std() + 1e-6))


def _nan_last(value: float) -> float:
    return inf if isnan(value) else value
