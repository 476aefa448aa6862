"""The forward of a packed pass: tokens and a layout in, the wanted rows of logits out."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from paceline.runtime.attention import PassLayout


class Forward(Protocol):
    """How a model computes a pass. Legend: P tokens, padding included, R wanted rows."""

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor, layout: PassLayout
    ) -> torch.Tensor:
        """Writes keys and values of the pass and computes rows.

        Args:
            ids: [P] int64, any id for padding.
            positions: [P] int64.
            wanted: [R] int64, tokens of the pass whose rows are wanted, ascending.
            layout: the pass.

        Returns:
            [R, columns] in the model's number format; [0, 0] may stand for no rows.
        """
        ...


class ModelForward:
    """The forward that transformers has for the model, whatever it does, with our attention in it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor, layout: PassLayout
    ) -> torch.Tensor:
        """See `Forward`."""
        rows = wanted if len(wanted) else wanted.new_zeros(1)
        output = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            paceline_layout=layout,
        )
        found: torch.Tensor = output.logits[0, : len(wanted)]
        return found
