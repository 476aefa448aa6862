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
    tokens = best.indices[:, 0].cpu().numpy().copy()
    for temperature in sorted(set(temperatures) - {0.0}):
        at = [index for index, each in enumerate(temperatures) if each == temperature]
        total = log_total[at] if temperature == 1 else torch.logsumexp(logits[at] / temperature, dim=1, keepdim=True)
        uniform = torch.tensor([uniforms[index] for index in at], dtype=torch.float64, device=logits.device)[:, None]
        tokens[at] = _inverted(logits, at, best, total, temperature, uniform).cpu().numpy()
    return Drawn(
        tokens,
        best.indices.to(torch.int32).cpu().numpy(),
        (best.values - log_total).to(torch.float16).cpu().numpy(),
    )


def _inverted(
    logits: torch.Tensor,
    at: list[int],
    best: torch.return_types.topk,
    log_total: torch.Tensor,
    temperature: float,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """[len(at)] tokens: the best ones come first in the cumulative distribution, so that the rest is rarely summed."""
    likely = torch.exp((best.values[at] / temperature - log_total).double())
    cumulative = torch.cumsum(likely, dim=1)
    place = torch.searchsorted(cumulative, uniform)[:, 0]
    kept = best.indices.shape[1]
    found = best.indices[at].gather(1, place.clamp(max=kept - 1)[:, None])[:, 0]
    for index in torch.nonzero(place == kept)[:, 0].tolist():
        row = torch.exp((logits[at[index]] / temperature - log_total[index]).double())
        row[best.indices[at[index]]] = 0.0
        rest = torch.cumsum(row, dim=0)
        if float(rest[-1]) > 0:  # else rounding alone has put the uniform behind the last token
            beyond = (uniform[index, 0] - cumulative[index, -1]).clamp(max=float(rest[-1]))
            found[index] = torch.searchsorted(rest, beyond).clamp(max=logits.shape[1] - 1)
    return found
