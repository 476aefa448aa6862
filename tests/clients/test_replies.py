"""What comes back, as values: nothing of the wire is lost."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from paceline.v1 import common_pb2, inference_pb2
from paceline_client import Delta, RoundTrace, Speculation
from paceline_client.replies import event_of, finish_of, speculation_of
from paceline_client.rounds import round_of

TRACE = common_pb2.RoundTrace(
    position=9,
    emitted=[5, 6, 7],
    emitted_texts=["a", "b", "c"],
    rule="rerank",
    reason="the row is free",
    tree_tokens=[5, 6, 8],
    tree_texts=["a", "b", "d"],
    tree_parents=[-1, 0, 0],
    tree_log_probs=[-0.5, -1.0, -2.0],
    accepted=[0, 1],
    relaxed=[1],
    drawn=7,
    focused=True,
    fallback="late",
    draft_ms=0.0,
    pass_ms=12.5,
    pass_tokens=4,
    deviation_spent=0.125,
)
ROUND = RoundTrace(
    position=9,
    emitted=(5, 6, 7),
    emitted_texts=("a", "b", "c"),
    rule="rerank",
    reason="the row is free",
    tree_tokens=(5, 6, 8),
    tree_texts=("a", "b", "d"),
    tree_parents=(-1, 0, 0),
    tree_log_probs=(-0.5, -1.0, -2.0),
    accepted=(0, 1),
    relaxed=(1,),
    drawn=7,
    focused=True,
    fallback="late",
    draft_ms=0.0,
    pass_ms=12.5,
    pass_tokens=4,
    deviation_spent=0.125,
)


def test_a_round_with_every_field() -> None:
    assert round_of(TRACE) == ROUND
    with pytest.raises(FrozenInstanceError):
        ROUND.position = 1  # type: ignore[misc]


def test_what_a_round_lacks_is_none_and_zero_is_a_value() -> None:
    empty = round_of(common_pb2.RoundTrace())
    assert (empty.drawn, empty.draft_ms, empty.tree_log_probs) == (None, None, ())
    zero = round_of(common_pb2.RoundTrace(drawn=0, draft_ms=0))
    assert (zero.drawn, zero.draft_ms) == (0, 0.0)


@pytest.mark.parametrize(
    ("message", "value"), [(common_pb2.RoundTrace, RoundTrace), (common_pb2.SpeculationStats, Speculation)]
)
def test_every_field_of_the_proto_is_there(message: Any, value: Any) -> None:
    assert {field.name for field in fields(value)} == {field.name for field in message.DESCRIPTOR.fields}


def test_a_delta_brings_its_rounds() -> None:
    delta = inference_pb2.Delta(token_ids=[5, 6, 7], text="abc", rounds=[TRACE, TRACE])
    assert event_of(inference_pb2.GenerateResponse(delta=delta)) == Delta((5, 6, 7), "abc", (ROUND, ROUND))
    assert event_of(inference_pb2.GenerateResponse(delta=inference_pb2.Delta(text="a"))) == Delta((), "a", ())


def test_what_belongs_to_one_of_several_replies_says_so() -> None:
    delta = inference_pb2.Delta(token_ids=[5], text="a", index=3)
    assert event_of(inference_pb2.GenerateResponse(delta=delta)) == Delta((5,), "a", (), 3)
    assert finish_of(inference_pb2.Finish(reason=common_pb2.FINISH_REASON_STOP, index=2)).index == 2
    assert finish_of(inference_pb2.Finish(reason=common_pb2.FINISH_REASON_STOP)).index == 0


def test_the_end_brings_every_statistic() -> None:
    stats = common_pb2.SpeculationStats(
        rounds=1,
        drafted=2,
        accepted=3,
        fallbacks={"late": 4},
        relaxed_tokens=5,
        deviation_spent=0.75,
        limits_applied={"max_deviation": 6},
        selections={"draft": 7, "plain": 8},
        row_passes=9,
        row_cache_hits=10,
        tokens_held_back=11,
        strength=1.5,
    )
    limits, selections = {"max_deviation": 6}, {"draft": 7, "plain": 8}
    expected = Speculation(1, 2, 3, {"late": 4}, 5, 0.75, limits, selections, 9, 10, 11, strength=1.5)
    finish = inference_pb2.Finish(reason=common_pb2.FINISH_REASON_STOP, speculation=stats)
    assert finish_of(finish).speculation == speculation_of(stats) == expected
