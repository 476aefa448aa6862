"""The table of pass costs: measured, not monotone, padded only where it pays."""

from __future__ import annotations

import pytest

from paceline.runtime.costs import MOST_ROUNDS, SIZES, PassCosts

DENT = PassCosts({1: 1.0, 2: 1.6, 3: 2.0, 4: 1.4, 5: 1.2, 8: 1.3, 16: 1.25})


class Machine:
    """A clock, and passes that take what `seconds(size, run)` says; runs count from 0."""

    def __init__(self, seconds) -> None:
        self.now = 0.0
        self.runs: dict[int, int] = {}
        self._seconds = seconds

    def run(self, size: int) -> None:
        run = self.runs.setdefault(size, 0)
        self.runs[size] += 1
        self.now += self._seconds(size, run)

    def measure(self, budget_s: float, **changes) -> PassCosts:
        return PassCosts.measure(self.run, budget_s, clock=lambda: self.now, **changes)


@pytest.mark.parametrize(("tokens", "padded"), [(1, 1), (2, 5), (3, 5), (4, 5), (5, 5), (8, 8), (16, 16), (20, 20)])
def test_a_pass_is_padded_to_the_cheapest_size_where_that_saves(tokens: int, padded: int) -> None:
    assert DENT.padded(tokens) == padded


@pytest.mark.parametrize(("cost", "padded"), [(0.91, 2), (0.89, 3)])
def test_a_saving_within_the_noise_does_not_count(cost: float, padded: int) -> None:
    assert PassCosts({2: 1.0, 3: cost}).padded(2) == padded


def test_between_sizes_by_a_line_and_beyond_in_proportion() -> None:
    assert DENT.seconds(12) == pytest.approx((1.3 + 1.25) / 2)
    assert DENT.seconds(32) == pytest.approx(2.5)


def test_without_a_table_nothing_is_padded() -> None:
    costs = PassCosts.unmeasured()
    assert costs.padded(3) == 3
    assert costs.seconds(3) is None


def test_the_fastest_run_counts_and_the_first_round_never() -> None:
    """Every size is slowed down by other work in all rounds but one, and looks faster than it is in the first."""
    machine = Machine(lambda size, run: 1e-6 if run == 0 else (size if run == 2 + size % 3 else 10 * size) / 10_000)
    costs = machine.measure(0.5)
    assert costs.seconds_by_size == pytest.approx({size: size / 10_000 for size in SIZES})


def test_as_many_rounds_as_the_budget_holds() -> None:
    for seconds, rounds in ((0.001, MOST_ROUNDS), (0.018, 4), (0.04, 3)):
        machine = Machine(lambda size, run, seconds=seconds: seconds)
        machine.measure(0.8)
        assert set(machine.runs.values()) == {rounds + 1}, "and one to warm up"


def test_a_machine_too_slow_to_measure_gets_no_table_and_is_not_waited_for() -> None:
    machine = Machine(lambda size, run: 1.5)
    assert machine.measure(2.0) == PassCosts.unmeasured()
    assert machine.now <= 10.0 + 1.5


def test_sizes_that_do_not_fit_are_left_out() -> None:
    assert list(Machine(lambda size, run: 0.001).measure(1.0, most_tokens=6).seconds_by_size) == [1, 2, 3, 4, 5, 6]
