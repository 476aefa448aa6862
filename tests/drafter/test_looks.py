"""Whether a look is worth its time: tokens a second, from what is measured and what looks have added."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from paceline.drafter.looks import FIRST_GAIN, Gains, MeasuredTimes, Place, worthwhile
from paceline.runtime.costs import PassCosts

UNSURE, SURE = Place(1.0, 0.0), Place(1.0, 0.99)


@dataclass(frozen=True)
class Given:
    """Times that a test names."""

    round_s: float | None
    first_s: float | None = 0.0  # of a pass of one token
    token_s: float = 0.0  # of each further one

    def pass_s(self, tokens: int, sessions: int) -> float | None:
        return None if self.first_s is None else self.first_s + self.token_s * (tokens * sessions - 1)

    def passed(self, tokens: int, seconds: float) -> None:
        raise AssertionError("nothing is measured here")

    def rounded(self, seconds: float) -> None:
        raise AssertionError("nothing is measured here")


def chosen(
    places: list[Place],
    times: Given,
    expected: float = 0.5,
    unread: int = 0,
    sessions: int = 1,
    spent_s: float = 0.0,
    *,
    free: bool = False,
) -> int:
    return worthwhile(places, expected, Gains(), times, unread=unread, sessions=sessions, spent_s=spent_s, free=free)


def test_a_look_is_made_where_it_raises_tokens_a_second() -> None:
    """One and a half tokens in 30 ms; a look adds half a token, which pays up to 10 ms."""
    assert FIRST_GAIN == 0.5
    assert chosen([UNSURE], Given(0.03, 0.0099)) == 1
    assert chosen([UNSURE], Given(0.03, 0.0101)) == 0
    assert chosen([SURE], Given(0.03, 0.002)) == 0, "a token that is certain needs no model"
    assert chosen([UNSURE], Given(0.03, 0.011), expected=0.2) == 1, "the less a tree promises, the more a look is worth"
    assert chosen([UNSURE], Given(0.03, 0.0101), spent_s=0.01) == 1, "what was spent is spent"


def test_the_pass_takes_as_many_places_as_pay() -> None:
    """Places of reach 1, 0.5, 0.25, ... each add half a token times that."""
    places = [Place(0.5**number, 0.0) for number in range(6)]
    assert chosen(places, Given(0.03, 0.005)) == 6, "more places in the same pass cost nothing"
    assert chosen(places, Given(0.03, 0.005, 0.002)) == 3
    assert chosen(places, Given(0.03, 0.02, 0.01)) == 0


def test_context_that_was_not_read_counts() -> None:
    times = Given(0.03, 0.004, 0.001)
    assert chosen([UNSURE], times, unread=5) == 1
    assert chosen([UNSURE], times, unread=20) == 0


def test_sessions_that_look_together_wait_together() -> None:
    times = Given(0.03, 0.004, 0.001)
    assert chosen([UNSURE], times, sessions=6) == 1
    assert chosen([UNSURE], times, sessions=9) == 0


def test_while_the_target_is_busy_or_times_are_unknown_every_look_is_made() -> None:
    assert chosen([UNSURE, UNSURE], Given(0.03, 9.0), free=True) == 2
    assert chosen([UNSURE], Given(None, 9.0)) == 1
    assert chosen([UNSURE], Given(0.03, None)) == 1
    assert chosen([], Given(0.03, 9.0), free=True) == 0


def test_gains_come_to_what_looks_add() -> None:
    gains = Gains()
    places = [Place(1.0, 0.0), Place(0.4, 0.5)]
    for _ in range(600):
        gains.learn(places, 0.8 * 1.0 + 0.1 * 0.4)
        gains.learn(places[1:], 0.1 * 0.4)
    assert gains.expected(Place(1.0, 0.0)) == pytest.approx(0.8, abs=1e-3)
    assert gains.expected(Place(1.0, 0.5)) == pytest.approx(0.1, abs=1e-3)
    assert gains.expected(Place(1.0, 0.3)) == FIRST_GAIN * 0.8, "of other ranges nothing was learned"
    gains.learn([Place(0.0, 0.0)], 1.0)
    assert gains.expected(Place(0.0, 0.0)) == 0


def test_looks_that_add_nothing_stop_and_are_tried_again_later() -> None:
    gains, times = Gains(), Given(0.03, 0.005)
    looks = [0, 0]
    for turn in range(2000):
        made = worthwhile([UNSURE], 0.5, gains, times, unread=0, sessions=1, spent_s=0.0, free=False)
        if made:
            looks[turn >= 200] += 1
            gains.learn([UNSURE], 0.0)
        else:
            gains.passed_over(UNSURE)
    assert 5 < looks[0] < 40
    assert 0 < looks[1] < 300


def test_measured_times_follow_the_machine_and_forget_pauses() -> None:
    times = MeasuredTimes(PassCosts({1: 0.002, 9: 0.004}))
    assert times.pass_s(5, 1) == pytest.approx(0.003), "the table, until a pass was seen"
    assert times.round_s is None
    for _ in range(60):
        times.passed(5, 0.006)
        times.rounded(0.02)
    assert times.pass_s(1, 1) == pytest.approx(0.004), "twice the table"
    assert times.round_s == pytest.approx(0.02)
    times.rounded(100.0)
    assert times.round_s < 0.03
    untimed = MeasuredTimes(PassCosts.unmeasured())
    assert untimed.pass_s(3, 1) is None
    untimed.passed(3, 0.01)
    assert untimed.pass_s(30, 2) == 0.01
