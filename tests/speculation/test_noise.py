"""Noise: bits that are the same everywhere, streams that are independent, and the law it gives over many seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from paceline.speculation.choices import SeededChoices
from paceline.speculation.noise import (
    Purpose,
    exponential,
    gumbel,
    noise_bits_numpy,
    noise_bits_torch,
    noise_key,
    uniform,
    uniforms,
)
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams

IDS = np.array([0, 1, 2, 1000, 49151, 262143], dtype=np.int64)
KEYS = [0, 1, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 2**64 - 1, noise_key(2**64 - 1, 3, 99, Purpose.DRAW)]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def splitmix64(key: int, token: int) -> int:
    """The hash once more, in plain integers."""
    mask = 2**64 - 1
    bits = key + (token + 1) * 0x9E3779B97F4A7C15 & mask
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & mask
    return bits ^ bits >> 31


@pytest.mark.parametrize("key", KEYS)
def test_numpy_gives_the_hash(key: int) -> None:
    assert noise_bits_numpy(key, IDS).tolist() == [splitmix64(key, token) for token in IDS.tolist()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("key", KEYS)
def test_torch_gives_the_same_bits(key: int, device: str) -> None:
    ids = np.arange(5000, dtype=np.int64)
    found = noise_bits_torch(key, torch.from_numpy(ids).to(device)).cpu().numpy().view(np.uint64)
    assert np.array_equal(found, noise_bits_numpy(key, ids))


def test_golden_values() -> None:
    """A resumed stream on another version must see the same noise: these numbers never change."""
    assert noise_key(0, 0, 0, Purpose.DRAW) == 14543243848954410808
    assert noise_key(42, 1, 7, Purpose.PROPOSE) == 15572203711817929898
    assert noise_bits_numpy(42, np.array([0, 1], dtype=np.int64)).tolist() == [
        13679457532755275413,
        2949826092126892291,
    ]


def test_every_part_of_the_address_matters() -> None:
    keys = {
        noise_key(seed, choice, position, purpose)
        for seed in (0, 1, 2**63, 2**64 - 1)
        for choice in range(3)
        for position in range(50)
        for purpose in Purpose
    }
    assert len(keys) == 4 * 3 * 50 * len(Purpose)


def test_a_uniform_never_rounds_to_one() -> None:
    """64 set bits: the hash undone gives the key. E = -log 1 would be 0, and a draw a division by it."""
    mask = 2**64 - 1
    bits = mask
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        undone = bits
        for _ in range(3):
            undone = bits ^ undone >> shift
        bits = undone * pow(factor, -1, 2**64) & mask
    key = bits - 0x9E3779B97F4A7C15 & mask
    token = np.array([0], dtype=np.int64)
    assert noise_bits_numpy(key, token).tolist() == [mask]
    assert uniform(key, 0) < 1.0
    assert exponential(key, token)[0] > 0.0


def test_uniforms_stay_inside() -> None:
    found = uniforms(7, np.arange(100_000, dtype=np.int64))
    assert found.min() > 0.0
    assert found.max() < 1.0
    assert uniform(7, 5) == found[5]
    assert np.allclose(gumbel(7, IDS), -np.log(exponential(7, IDS)))


@pytest.mark.parametrize("vary", ["seed", "position", "choice"])
def test_the_law_over_many_addresses(vary: str) -> None:
    """20 000 draws over one part of the address; G-test on 8 cells, false alarm 1e-6 a run."""
    probs = np.array([0.3, 0.05, 0.15, 0.2, 0.02, 0.08, 0.1, 0.1])
    row = Row.from_dense(probs)
    counts = np.zeros(len(probs))
    for index in range(20_000):
        params = SamplingParams(
            temperature=1.0,
            seed=index if vary == "seed" else 11,
            choice=index if vary == "choice" else 0,
        )
        counts[SeededChoices(params).draw(row, index if vary == "position" else 3)] += 1
    assert stats.power_divergence(counts, probs * counts.sum(), lambda_="log-likelihood").pvalue > 1e-6


def test_a_draw_depends_on_the_tokens_row_only_through_their_ids() -> None:
    """Leaving an impossible token out of the support changes nothing."""
    choices = SeededChoices(SamplingParams(temperature=1.0, seed=9))
    full = Row(np.array([3, 5, 8]), np.array([0.6, 0.0, 0.4]))
    sparse = Row(np.array([3, 8]), np.array([0.6, 0.4]))
    assert [choices.draw(full, at) for at in range(200)] == [choices.draw(sparse, at) for at in range(200)]
