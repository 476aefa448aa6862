"""The choice interface: draws and accept tests under the request's noise, each with streams of its own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from paceline.speculation.choices import SeededChoices
from paceline.speculation.noise import Purpose, noise_bits_numpy, noise_key, uniform
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.study.outcomes import ScriptedChoices, law

ROW = Row.from_dense(np.array([0.5, 0.3, 0.2]))


def seeded(seed: int, choice: int = 0, temperature: float = 1.0) -> SeededChoices:
    return SeededChoices(SamplingParams(temperature=temperature, seed=seed, choice=choice))


def g_test(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(stats.power_divergence(counts.ravel(), expected.ravel(), lambda_="log-likelihood").pvalue)


def test_a_draw_is_the_largest_score_under_noise() -> None:
    for position in range(100):
        bits = noise_bits_numpy(noise_key(5, 0, position, Purpose.DRAW), ROW.token_ids)
        uniforms = [((int(each) >> 11) + 0.5) / 2**53 for each in bits]
        scores = np.log(ROW.probs) - np.log(-np.log(uniforms))
        assert seeded(5).draw(ROW, position) == int(np.argmax(scores))


def test_greedy_is_the_argmax_with_ties_to_the_lowest_id() -> None:
    row = Row(np.array([2, 5, 9]), np.array([0.2, 0.4, 0.4]))
    assert {seeded(seed, temperature=0.0).draw(row, 3) for seed in range(50)} == {5}


def test_equal_scores_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.speculation.choices.exponential", lambda key, ids: np.ones(len(ids)))
    assert seeded(1).draw(Row(np.array([3, 4, 8]), np.array([0.2, 0.4, 0.4])), 0) == 4


@pytest.mark.parametrize("apart", ["seed", "choice", "position"])
def test_draws_at_neighbouring_addresses_are_independent(apart: str) -> None:
    """Pairs of draws whose addresses differ by one in one part, 20 000 pairs; G-test on 9 cells, false alarm 1e-6."""
    counts = np.zeros((3, 3))
    for index in range(20_000):
        seed = 2 * index
        other = seeded(seed + (apart == "seed"), choice=int(apart == "choice"))
        counts[seeded(seed).draw(ROW, 7), other.draw(ROW, 7 + (apart == "position"))] += 1
    assert g_test(counts, np.outer(ROW.probs, ROW.probs) * counts.sum()) > 1e-6


def test_high_and_low_halves_of_the_seed_matter_alike() -> None:
    """Seeds that differ only in the upper or only in the lower half; 10 000 each, G-test on 3 cells, 1e-6 each."""
    for shift in (0, 32, 48):
        counts = np.zeros(3)
        for index in range(10_000):
            counts[seeded(index << shift).draw(ROW, 0)] += 1
        assert g_test(counts, ROW.probs * counts.sum()) > 1e-6


def test_accepting_has_its_probability_and_is_independent_of_the_draw() -> None:
    """A draw and two accept tests at one position, 20 000 seeds; G-test on 12 cells, false alarm 1e-6."""
    counts = np.zeros((3, 2, 2))
    for seed in range(20_000):
        choices = seeded(seed)
        counts[choices.draw(ROW, 4), int(choices.accept(0.3, 4, 0)), int(choices.accept(0.6, 4, 1))] += 1
    expected = np.einsum("i,j,k->ijk", ROW.probs, [0.7, 0.3], [0.4, 0.6]) * counts.sum()
    assert g_test(counts, expected) > 1e-6


def test_never_and_always_are_certain() -> None:
    for seed in range(500):
        assert not seeded(seed).accept(0.0, 1, 0)
        assert seeded(seed).accept(1.0, 1, 0)


def test_sharing_the_draws_stream_with_accepting_would_be_seen() -> None:
    """Had `accept` used the stream of draws, the two would agree far too often."""
    counts = np.zeros((3, 2))
    for seed in range(20_000):
        shared = uniform(noise_key(seed, 0, 4, Purpose.DRAW), 0) < 0.3
        counts[seeded(seed).draw(ROW, 4), int(shared)] += 1
    assert g_test(counts, np.outer(ROW.probs, [0.7, 0.3]) * counts.sum()) < 1e-6


def test_the_driver_walks_every_outcome() -> None:
    def run(choices: ScriptedChoices) -> tuple[int, bool]:
        token = choices.draw(ROW, 0)
        return token, token > 0 and choices.accept(0.25, 0, 0)

    expected = {(0, False): 0.5, (1, True): 0.075, (1, False): 0.225, (2, True): 0.05, (2, False): 0.15}
    assert law(run) == pytest.approx(expected, abs=1e-15)


def test_the_driver_leaves_out_what_cannot_happen() -> None:
    assert law(lambda choices: choices.accept(1.0, 0, 0)) == {True: 1.0}
    assert law(lambda choices: choices.accept(0.0, 0, 0)) == {False: 1.0}
