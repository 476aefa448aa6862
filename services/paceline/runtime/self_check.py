"""Compares the packed pass with the model's own forward at load, so that no model is served wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.errors import ModelUnsupported
from paceline.runtime.kv import OutOfPages
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner, PassRows
from paceline.runtime.weights import first_line

# Root mean square of the difference of two rows, as a share of the row's own spread. Right passes were measured at
# 3e-6 in float32; one wrong ancestor makes 0.2 on a trained model.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 0.05}
PREFIX, OTHER = 12, 3  # committed tokens of the sequence looked at, and tokens of another one in the same pass
PARENTS = (-1, 0, 0, 2)  # two siblings, the second with a child, so that ancestors are not neighbours


@torch.inference_mode()
def self_check(runner: ModelRunner, model: Any, attention: str, name: str) -> None:
    """Runs a small tree over a prefix, behind another sequence, and each of its paths through the model itself.

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
        for node in range(len(tokens)):
            ids = torch.tensor([prefix + _path(tokens, node)], device=model.device)
            own = model(input_ids=ids, use_cache=False).logits[0, -1].float()
            _compare(own, packed.logits(1, node), model.dtype, name)
    finally:
        model.set_attn_implementation(attention)


def _tree_rows(runner: ModelRunner, prefix: list[int], tokens: list[int]) -> PassRows:
    sequence, other = runner.kv.open(), runner.kv.open()
    try:
        runner.execute(PassPlan((Segment.chain(sequence, prefix, last_row=False),)))
        runner.kv.keep(sequence, range(len(prefix)))
        tree = Segment(sequence, np.asarray(tokens, np.int32), np.asarray(PARENTS, np.int32), tuple(range(len(tokens))))
        return runner.execute(PassPlan((Segment.chain(other, prefix[:OTHER], last_row=False), tree)))
    finally:
        runner.kv.release(sequence)
        runner.kv.release(other)


def _path(tokens: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = PARENTS[node]
    return path[::-1]


def _compare(own: torch.Tensor, packed: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """Both [vocab_padded] float32."""
    difference = float((own - packed).square().mean().sqrt())
    spread = float(own.std())
    if not difference <= ALLOWED[dtype] * spread + 1e-6:  # also true of a row with NaN
        raise ModelUnsupported(
            f"{name}: the packed pass differs from the model's own forward by {difference:.2g} in the logits, whose "
            f"spread is {spread:.2g} (allowed: a share of {ALLOWED[dtype]:g}); its attention is not plain causal "
            "attention, or it overflows this number format"
        )
