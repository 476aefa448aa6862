"""One pass's draws, all sequences at once, and the rows that are kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import EngineFault


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a pass gave to B sequences."""

    tokens: NDArray[np.int64]  # [B]
    row_ids: NDArray[np.int32]  # [B, K] best first
    row_log_probs: NDArray[np.float16]  # [B, K] at temperature 1, nats


def draw(logits: torch.Tensor, temperatures: Sequence[float], uniforms: Sequence[float], rows: int) -> Drawn:
    """Draws one token for each sequence and keeps its row.

    A draw inverts the cumulative distribution at one uniform: what a sequence gets depends on its own row alone. The
    text of a corpus needs no more; what is *served* is drawn by `paceline.speculation`.

    Args:
        logits: [B, V] float32.
        temperatures: [B]; 0 takes the most probable token.
        uniforms: [B] strictly between 0 and 1; unused where the temperature is 0.
        rows: tokens kept of each row, K.

    Raises EngineFault for logits that are not finite.
    """
    best = torch.topk(logits, rows, dim=1)
    log_total = torch.logsumexp(logits, dim=1, keepdim=True)
    if not bool(torch.isfinite(log_total).all()):
        raise EngineFault("the target's logits are not finite; try --dtype float32")
    tokens = best.indices[:, 0].clone()
    sampled = [index for index, temperature in enumerate(temperatures) if temperature > 0]
    if sampled:
        scale = torch.tensor([temperatures[index] for index in sampled], device=logits.device)[:, None]
        probs = torch.softmax(logits[sampled] / scale, dim=1)
        cumulative = torch.cumsum(probs, dim=1, dtype=torch.float64)
        at = torch.tensor([uniforms[index] for index in sampled], dtype=torch.float64, device=logits.device)
        found = torch.searchsorted(cumulative, at[:, None] * cumulative[:, -1:])[:, 0]
        tokens[sampled] = found.clamp(max=logits.shape[1] - 1)
    return Drawn(
        tokens.cpu().numpy(),
        best.indices.to(torch.int32).cpu().numpy(),
        (best.values - log_total).to(torch.float16).cpu().numpy(),
    )
