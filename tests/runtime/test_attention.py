"""What attention refuses to compute, whichever model asks for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.errors import ModelUnsupported
from paceline.runtime.attention import attend, lay_out
from paceline.runtime.kv import KVCache, TensorStorage
from paceline.runtime.plan import PassPlan, Segment


class Layer(torch.nn.Module):
    layer_idx = 0


def attended(module: torch.nn.Module | None = None, mask: torch.Tensor | None = None, **features: Any) -> torch.Tensor:
    """One token of a model with a context limit of 64, two query heads on one KV head."""
    storage = TensorStorage.allocate(1, 1, 4, 16, torch.float32, torch.device("cpu"))
    kv = KVCache(1, 16, storage)
    layout = lay_out(PassPlan((Segment.chain(kv.open(), [1], last_row=True),)), kv, storage, 2, 64)
    query, key, value = torch.ones(1, 2, 1, 4), torch.ones(1, 1, 1, 4), torch.full((1, 1, 1, 4), 3.0)
    return attend(module or Layer(), query, key, value, mask, scaling=0.5, paceline_layout=layout, **features)[0]


@pytest.mark.parametrize(
    "features",
    [{}, {"softcap": None, "s_aux": None}, {"sliding_window": 64}, {"is_causal": True}, {"dropout": 0.0}],
)
def test_a_token_alone_gets_its_own_value(features: dict[str, Any]) -> None:
    assert attended(**features).tolist() == [[[[3.0] * 4] * 2]]


@pytest.mark.parametrize("feature", ["softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices"])
def test_features_that_change_the_result(feature: str) -> None:
    with pytest.raises(ModelUnsupported, match=feature):
        attended(**{feature: torch.ones(2)})


def test_a_window_below_the_context_limit() -> None:
    with pytest.raises(ModelUnsupported, match=r"63 tokens only.*limit of 64"):
        attended(sliding_window=63)


def test_masks_of_the_models_own() -> None:
    with pytest.raises(ModelUnsupported, match="masks of their own"):
        attended(mask=torch.zeros(1, 1, 1, 1))


def test_looking_ahead() -> None:
    module = Layer()
    module.is_causal = False  # type: ignore[assignment]
    with pytest.raises(ModelUnsupported, match="looks ahead"):
        attended(module)
    with pytest.raises(ModelUnsupported, match="looks ahead"):
        attended(is_causal=False)
