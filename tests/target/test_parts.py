"""Small parts: settings, the inbox, the books."""

from __future__ import annotations

import threading
import time

import pytest
from pydantic import ValidationError

from paceline.errors import InvalidField
from paceline.runtime.toy import ToyRunner
from paceline.target.config import TargetConfig
from paceline.target.counters import Counters
from paceline.target.engine import served_context
from paceline.target.inbox import Inbox
from paceline.target.lapse import Lapse
from paceline.target.seats import Seats
from target.rig import PATIENCE_S, random_table


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"budget": 65}, "max_budget"),
        ({"budget": -1}, "auto, or a whole number"),
        ({"budget": "some"}, "auto, or a whole number"),
        ({"budget": 2.5}, "auto, or a whole number"),
        ({"step_tokens": 8, "max_sessions": 9}, "max_sessions"),
        ({"kv_tokens": 64}, "max_budget"),
        ({"draft_deadline_ms": 0}, "draft_deadline_ms"),
        ({"dtype": "int2"}, "dtype"),
        ({"device": "tpu"}, "device"),
        ({"port": 65536}, "port"),
        ({"max_session": 3}, "max_session"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        TargetConfig(**fields)  # type: ignore[arg-type]


def test_every_setting_is_described() -> None:
    for name, field in TargetConfig.model_fields.items():
        assert field.description, name


def test_the_served_context_is_what_model_memory_and_settings_allow() -> None:
    table = random_table(4)
    assert served_context(ToyRunner(table, context_length=100), TargetConfig()) == 100
    assert served_context(ToyRunner(table, context_length=100), TargetConfig(context_length=50)) == 50
    assert served_context(ToyRunner(table, pages=10, page_size=16), TargetConfig(max_budget=64)) == 160 - 64 - 16
    with pytest.raises(InvalidField, match="kv_tokens"):
        served_context(ToyRunner(table, pages=5, page_size=16), TargetConfig(max_budget=64))


def test_the_inbox_keeps_order_wakes_and_closes() -> None:
    inbox: Inbox[int] = Inbox()
    seen: list[int] = []

    def read() -> None:
        while 9 not in seen:
            inbox.wait(None)
            seen.extend(inbox.take())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for number in range(10):
        assert inbox.post([number])
    thread.join(PATIENCE_S)
    assert seen == list(range(10))
    inbox.wait(time.monotonic() - 1.0)  # returns at once
    inbox.post([10])
    assert inbox.close() == [10]
    assert not inbox.post([11])
    assert inbox.take() == []
    inbox.wait(None)  # closed: nothing will come


def test_seats() -> None:
    seats = Seats(2)
    assert [seats.take(), seats.take(), seats.take()] == [True, True, False]
    seats.give_back()
    assert seats.take()
    assert seats.taken == 2


def test_a_lapse_counts_misses_in_a_row() -> None:
    lapse = Lapse(2)
    lapse.missed()
    lapse.met()
    lapse.missed()
    assert not lapse.suspended
    lapse.missed()
    assert lapse.suspended
    lapse.met()
    assert not lapse.suspended


def test_totals_are_consistent_while_they_grow() -> None:
    counters = Counters()

    def add() -> None:
        for _ in range(2000):
            counters.add(emitted=2, accepted=1, fallbacks={"late": 1})

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        totals = counters.totals()
        assert totals.emitted == 2 * totals.accepted == 2 * totals.fallbacks.get("late", 0)
    for thread in threads:
        thread.join()
    assert counters.totals().emitted == 12_000
