"""Rows as they are served: order of the filters, boundaries, ties, extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.speculation.rows import NonFiniteRow, Row, process
from paceline.speculation.sampling import SamplingParams

B8 = torch.tensor([0.45, 0.25, 0.2, 0.1], dtype=torch.float64).log()


def served(logits: torch.Tensor, **params: float) -> Row:
    return process(logits, SamplingParams(**{"temperature": 1.0, **params}), len(logits))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.6, [0, 1]),
        (0.8, [0, 1, 2]),
        (0.45, [0]),
        (0.7, [0, 1]),
        (0.0, [0]),
        (1e-8, [0]),
        (1e-3, [0]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_the_nucleus_keeps_the_token_that_crosses(top_p: float, kept: list[int]) -> None:
    row = served(B8, top_p=top_p)
    assert row.token_ids.tolist() == kept
    assert row.probs.sum() == pytest.approx(1.0, abs=1e-12)


def test_top_k_then_top_p_then_renormalised() -> None:
    row = served(B8, top_k=3, top_p=0.6)  # .45/.9 = .5, .25/.9 = .28: the second one crosses
    assert row.token_ids.tolist() == [0, 1]
    assert row.probs == pytest.approx([0.45 / 0.7, 0.25 / 0.7])


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 9e-6])
def test_up_to_the_threshold_it_is_greedy_with_ties_to_the_lowest_id(temperature: float) -> None:
    assert process(torch.tensor([1.0, 3.0, 3.0]), SamplingParams(temperature), 3).token_ids.tolist() == [1]


@pytest.mark.parametrize("temperature", [1e-4, 0.01, 0.5, 1.0, 5.0, 100.0, 1e6])
def test_any_other_temperature_is_finite_and_ordered(temperature: float) -> None:
    row = served(torch.tensor([-40.0, 3.0, 30.0, 29.0]), temperature=temperature)
    assert np.isfinite(row.probs).all()
    assert row.probs.sum() == pytest.approx(1.0, abs=1e-12)
    assert row.argmax() == 2
    if temperature == 1e6:
        assert row.probs == pytest.approx(np.full(4, 0.25), abs=1e-4)


def test_temperature_flattens() -> None:
    logits = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]).log()
    assert served(logits, temperature=5.0).probs[0] < 0.28 < served(logits).probs[0]


@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.9}, {"temperature": 0.0}])
def test_padding_gets_nothing(params: dict[str, float]) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 50.0, 60.0])
    row = process(logits, SamplingParams(**{"temperature": 1.0, **params}), 3)  # type: ignore[arg-type]
    assert row.token_ids.max() == 2


@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
def test_ties_at_the_edge_of_top_k_go_to_the_lowest_id(top_k: int) -> None:
    row = served(torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0]), top_k=top_k)
    assert row.token_ids.tolist() == sorted([1, 0, 2, 3, 4][:top_k])


def test_ties_at_the_edge_of_the_nucleus_go_to_the_lowest_id() -> None:
    assert served(torch.zeros(10).double(), top_p=0.35).token_ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_a_large_vocabulary_gives_what_a_full_sort_gives(scale: float, top_p: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(int(scale * 10))).double() * scale
    probs = torch.softmax(logits, 0).numpy()
    order = np.lexsort((np.arange(5000), -probs))
    count = int(np.argmax(np.cumsum(probs[order]) >= top_p - 1e-12)) + 1
    assert served(logits, top_p=top_p).token_ids.tolist() == sorted(order[:count].tolist())


@pytest.mark.parametrize("top_k", [1, 50, 1500, 4999])
def test_a_large_top_k_with_many_ties(top_k: int) -> None:
    logits = torch.randint(-20, 20, (5000,), generator=torch.Generator().manual_seed(top_k)).float()
    order = np.lexsort((np.arange(5000), -logits.numpy()))
    assert served(logits, top_k=top_k).token_ids.tolist() == sorted(order[:top_k].tolist())


def test_many_ties_around_the_edge_of_a_large_nucleus() -> None:
    """2 000 tokens share .8 and 3 000 share .2; .5 needs 1 250 of the first and .9 needs 1 500 of the others too."""
    probs = np.concatenate([np.full(3000, 0.2 / 3000), np.full(2000, 0.8 / 2000)])
    logits = torch.from_numpy(probs).log()
    for top_p, kept in ((0.5, range(3000, 4250)), (0.9, [*range(1500), *range(3000, 5000)])):
        found = served(logits, top_p=top_p).token_ids.tolist()
        assert found == list(kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_of_any_float_serve_and_are_left_alone(dtype: torch.dtype) -> None:
    logits = torch.tensor([0.5, -2.0, 1.25, 0.0], dtype=dtype)  # exact in each
    before = logits.clone()
    row = served(logits, temperature=0.5, top_k=3, top_p=0.99)
    assert torch.equal(logits, before)
    weights = np.exp(np.array([0.5, 1.25, 0.0]) / 0.5)
    assert row.token_ids.tolist() == [0, 2, 3]
    assert row.probs == pytest.approx(weights / weights.sum(), abs=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("params", [{}, {"top_k": 40}, {"top_p": 0.9}, {"temperature": 0.0}])
def test_the_same_logits_give_the_same_row_on_a_gpu(params: dict[str, float]) -> None:
    logits = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    here, there = served(logits, **params), served(logits.cuda(), **params)
    assert np.array_equal(here.token_ids, there.token_ids)
    assert np.array_equal(here.probs, there.probs)


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [1.0, math.inf], [-math.inf, -math.inf], [math.nan, math.nan]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_rows_are_refused(bad: list[float], temperature: float) -> None:
    with pytest.raises(NonFiniteRow):
        process(torch.tensor(bad), SamplingParams(temperature), 2)


def test_masked_tokens_are_allowed() -> None:
    assert served(torch.tensor([-math.inf, 0.0, 0.0])).token_ids.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_is_a_choice(dtype: torch.dtype) -> None:
    row = process(B8, SamplingParams(1.0), 4, dtype)
    assert row.probs.dtype == {torch.float32: np.float32, torch.float64: np.float64}[dtype]
    assert row.dense(6).tolist()[4:] == [0.0, 0.0]
    assert row.prob(2) == pytest.approx(0.2, abs=1e-6)
    assert row.prob(5) == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1.0), ("temperature", math.nan), ("temperature", 2e6), ("top_p", 1.5), ("top_p", -0.1),
     ("top_p", math.nan), ("top_k", -1), ("top_k", 11), ("seed", -1), ("seed", 2**64)],
)  # fmt: skip
def test_faults_name_the_field(field: str, value: float) -> None:
    found = SamplingParams(**{field: value}).faults(10)  # type: ignore[arg-type]
    assert [fault[0] for fault in found] == [field]
    assert SamplingParams(temperature=0.7, top_k=10, top_p=0.9, seed=2**64 - 1).faults(10) == []
