"""Rounds on their way to the client: with the tokens they gave, their texts filled in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.rig import LENGTH, STOP, Step, finish, gateway, within
from gateway.tokenizers_for_tests import ByteTokenizer, PieceTokenizer
from paceline.gateway.token_texts import TokenTexts
from paceline.rpc.arrays import ints_to_bytes
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.v1 import common_pb2, inference_pb2, target_pb2

Round = common_pb2.RoundTrace


def message(*rounds: Round) -> target_pb2.DecodeResponse:
    tokens = [token for trace in rounds for token in trace.emitted]
    return target_pb2.DecodeResponse(tokens=ints_to_bytes(tokens), rounds=rounds)


async def deltas(steps: list[Step], **fields: object) -> tuple[list[inference_pb2.Delta], target_pb2.DecodeRequest]:
    """What a client gets of a target's messages, and what the target was asked."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        for step in steps:
            yield step

    async with gateway(script) as served:
        request = inference_pb2.GenerateRequest(text="x", **fields)
        found = [response.delta async for response in served.stub.Generate(request) if response.HasField("delta")]
        return found, served.targets[0].requests[0]


async def test_rounds_come_with_their_tokens_and_with_texts() -> None:
    first = Round(
        position=1,
        emitted=[72, 105],
        rule="draft",
        tree_tokens=[72, 32, 10],
        tree_parents=[-1, 0, 0],
        tree_log_probs=[-0.5, -1.0, -2.0],
        accepted=[0],
        drawn=105,
        draft_ms=2.5,
        pass_ms=7.0,
        pass_tokens=4,
        deviation_spent=0.25,
    )
    second, third = Round(position=3, emitted=[33]), Round(position=4, emitted=[33, 256])
    got, asked = await within(deltas([message(first), message(second, third), finish(STOP)], trace=True))
    assert asked.trace
    first.tree_texts[:], first.emitted_texts[:] = ["H", " ", "\n"], ["H", "i"]
    second.emitted_texts[:], third.emitted_texts[:] = ["!"], ["!", "<end>"]
    assert [list(delta.rounds) for delta in got] == [[first], [second, third]]
    assert [list(delta.token_ids) for delta in got] == [[72, 105], [33, 33, 256]]


@pytest.mark.parametrize("trace", [None, False])
async def test_no_trace_is_asked_for_where_the_client_wants_none(trace: bool | None) -> None:
    got, asked = await within(deltas([[72], finish(STOP)], trace=trace))
    assert not asked.trace
    assert [list(delta.rounds) for delta in got] == [[]]


async def test_rounds_behind_the_end_of_a_reply_are_dropped_with_their_tokens() -> None:
    """The target runs on over max_tokens: the second round is cut, the third was never delivered."""
    steps: list[Step] = [message(*(Round(position=p, emitted=[72, 105]) for p in (1, 3, 5))), finish(LENGTH)]
    got, _ = await within(deltas(steps, trace=True, max_tokens=3))
    assert [list(delta.token_ids) for delta in got] == [[72, 105, 72]]
    assert [(trace.position, list(trace.emitted)) for trace in got[0].rounds] == [(1, [72, 105]), (3, [72])]
    assert [list(trace.emitted_texts) for trace in got[0].rounds] == [["H", "i"], ["H"]]


def test_texts_of_tokens_as_they_read_behind_others() -> None:
    pieces = TokenTexts(PieceTokenizer(["▁the", "n", "▁"]))
    assert [pieces.of(256 + index) for index in range(3)] == [" the", "n", " "]
    assert pieces.of(0xC3) == "\ufffd", "half a character"
    toy = TokenTexts(ToyTokenizer(["a", "<eos>"], frozenset({1})))
    assert [toy.of(token) for token in (0, 1, 2, -1)] == ["a", "<eos>", "", ""]
    bytes_ = TokenTexts(ByteTokenizer())
    assert [bytes_.of(token) for token in (10, 0xC3, 0xA9, 256)] == ["\n", "\ufffd", "\ufffd", "<end>"]


def test_a_text_is_decoded_once() -> None:
    class Counting(ByteTokenizer):
        calls = 0

        def decode(self, ids: object) -> str:
            Counting.calls += 1
            return super().decode(ids)  # type: ignore[arg-type]

    texts = TokenTexts(Counting())
    assert [texts.of(65) for _ in range(5)] == ["A"] * 5
    assert Counting.calls == 2


async def test_a_whole_reply_brings_all_its_rounds() -> None:
    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield message(Round(position=1, emitted=[72]))
        yield message(Round(position=2, emitted=[105]))
        yield finish(STOP)

    async with gateway(script) as served:
        rounds = (await within(served.client.complete("x", trace=True))).rounds
    assert [(trace.position, trace.emitted, trace.emitted_texts) for trace in rounds] == [
        (1, (72,), ("H",)),
        (2, (105,), ("i",)),
    ]
