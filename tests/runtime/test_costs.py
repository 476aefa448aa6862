"""The table of pass costs: measured, not monotone, padded only where it pays."""

from __future__ import annotations

import pytest

from paceline.runtime.costs import SIZES, PassCosts

DENT = PassCosts({1: 1.0, 2: 1.6, 3: 2.0, 4: 1.4, 5: 1.2, 8: 1.3, 16: 1.25})


@pytest.mark.parametrize(("tokens", "padded"), [(1, 1), (2, 5), (3, 5), (4, 5), (5, 5), (8, 8), (16, 16), (20, 20)])
def test_a_pass_is_padded_to_the_cheapest_size_where_that_saves(tokens: int, padded: int) -> None:
    assert DENT.padded(tokens) == padded


def test_between_sizes_by_a_line_and_beyond_in_proportion() -> None:
    assert DENT.seconds(12) == pytest.approx((1.3 + 1.25) / 2)
    assert DENT.seconds(32) == pytest.approx(2.5)


def test_without_a_table_nothing_is_padded() -> None:
    costs = PassCosts.unmeasured()
    assert costs.padded(3) == 3
    assert costs.seconds(3) is None


def test_medians_of_several_rounds_within_the_budget() -> None:
    now = 0.0
    runs = dict.fromkeys(SIZES, 0)

    def run(size: int) -> None:
        nonlocal now
        runs[size] += 1
        now += 100.0 if runs[size] == 2 else size / 10  # one slow pass must not count

    costs = PassCosts.measure(run, budget_s=1.0, clock=lambda: now)
    assert costs.seconds_by_size == pytest.approx({size: size / 10 for size in SIZES})
    assert set(runs.values()) == {4}, "three timed rounds are the least, whatever the budget"
