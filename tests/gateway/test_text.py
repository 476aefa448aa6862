"""Text of a reply: stop strings (C3), characters split over tokens (D1), end tokens (C1, C6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from gateway.rig import STOP, Script, Step, finish, gateway, model, says, within
from gateway.tokenizers_for_tests import ByteTokenizer, PieceTokenizer
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.v1 import target_pb2
from paceline_client import Delta, Finish, Tokens

HARD_TEXT = "Příliš žluťoučký 안녕 👩‍👩‍👧 ok"
CHUNKS = (1, 2, 3, 7, 100)
PIECES = ("▁ok", "▁ž", "lu", "ť", "ou", "čký", "▁P", "ří", "liš", "▁", "안")


async def replies(served: Any, **fields: Any) -> tuple[list[Delta], Finish]:
    events = [event async for event in served.client.generate(Tokens([1]), **fields)]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert isinstance(events[-1], Finish)
    assert len(deltas) == len(events) - 1, "nothing comes after the finish, and there is one"
    return deltas, events[-1]


def joined(deltas: Sequence[Delta]) -> tuple[str, list[int]]:
    return "".join(delta.text for delta in deltas), [token for delta in deltas for token in delta.token_ids]


def words(*texts: str) -> ToyTokenizer:
    return ToyTokenizer(list(dict.fromkeys(texts)))


def rounds(*blocks: Sequence[int]) -> Script:
    """Emits each block at once and goes on whatever the text holds, as a target that knows no stop strings would."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        for block in blocks:
            yield list(block)
        yield finish(STOP)

    return script


async def stopped(blocks: list[list[str]], stops: list[str]) -> tuple[list[Delta], Finish, list[str]]:
    """Deltas and finish of a reply made of these words, and the words that were delivered."""
    vocabulary = ["<prompt>", *dict.fromkeys(word for block in blocks for word in block)]
    tokenizer = ToyTokenizer(vocabulary)
    script = rounds(*([vocabulary.index(word) for word in block] for block in blocks))
    async with gateway(script, tokenizer=tokenizer) as served:
        deltas, end = await within(replies(served, stop=stops))
    _, tokens = joined(deltas)
    assert end.usage.completion_tokens == len(tokens)
    assert end.reason == "stop"
    return deltas, end, [vocabulary[token] for token in tokens]


async def test_a_stop_string_in_the_first_tokens_of_a_block() -> None:
    deltas, end, delivered = await stopped([["a ", "END", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]], ["END"])
    assert joined(deltas)[0] == "a "
    assert delivered == ["a ", "END"]
    assert end.stop_match == "END"


async def test_a_stop_string_over_two_rounds_shows_nothing_of_itself() -> None:
    deltas, end, delivered = await stopped([["a", "b", "EN"], ["D", "x", "y"], ["z"]], ["END"])
    assert [delta.text for delta in deltas] == ["ab", ""]
    assert delivered == ["a", "b", "EN", "D"]
    assert end.stop_match == "END"


async def test_a_stop_string_inside_one_token() -> None:
    deltas, _, delivered = await stopped([["a", "xENDy", "z"]], ["END"])
    assert joined(deltas)[0] == "ax"
    assert delivered == ["a", "xENDy"]


async def test_a_prefix_of_a_stop_string_is_released() -> None:
    deltas, end, delivered = await stopped([["a ", "EN"], ["GINE"]], ["END"])
    assert deltas[0].text == "a ", "held while it may become the stop string"
    assert joined(deltas)[0] == "a ENGINE"
    assert delivered == ["a ", "EN", "GINE"]
    assert end.stop_match == ""


async def test_a_prefix_of_a_stop_string_at_the_very_end_is_released() -> None:
    deltas, _, _ = await stopped([["a ", "EN"]], ["END"])
    assert joined(deltas)[0] == "a EN"


@pytest.mark.parametrize(
    ("stops", "text", "match"),
    [
        (["bc", "abcd"], "x", "abcd"),  # the one that begins first
        (["ab", "abc"], "x", "ab"),  # complete while the longer one is not: known at the token "b"
        (["cd", "abx"], "xab", "cd"),
    ],
)
async def test_overlapping_stop_strings(stops: list[str], text: str, match: str) -> None:
    blocks = [["x", "a", "b", "c", "d", "e"]]
    for split in ([blocks[0]], [[word] for word in blocks[0]]):
        deltas, end, _ = await stopped(split, stops)
        shown = joined(deltas)[0]
        if match == "abcd":
            # "bc" completes first; text that was read token by token ends there
            assert (shown, end.stop_match) == ("xa", "bc")
        else:
            assert (shown, end.stop_match) == (text, match)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), PieceTokenizer(PIECES)], ids=["bytes", "pieces"])
async def test_joined_deltas_are_one_decode_of_all_tokens(tokenizer: Any, chunk: int) -> None:
    tokens = tokenizer.encode(HARD_TEXT)
    async with gateway(says(tokens, chunk), tokenizer=tokenizer) as served:
        deltas, end = await within(replies(served))
    assert joined(deltas) == (tokenizer.decode(tokens), tokens)
    assert joined(deltas)[0] == HARD_TEXT
    assert not any("\ufffd" in delta.text for delta in deltas)
    assert end.usage.completion_tokens == len(tokens)


@pytest.mark.parametrize("chunk", CHUNKS)
async def test_a_reply_cut_inside_a_character_ends_as_the_full_decode_does(chunk: int) -> None:
    tokens = list("ab 👩".encode())
    for count in range(1, len(tokens)):
        async with gateway(says(tokens, chunk)) as served:
            deltas, end = await within(replies(served, max_tokens=count))
        assert joined(deltas) == (ByteTokenizer().decode(tokens[:count]), tokens[:count])
        assert end.reason == "length"


async def test_tokens_come_at_once_while_text_waits() -> None:
    async with gateway(says(list("é".encode()))) as served:
        deltas, _ = await within(replies(served))
    assert deltas == [Delta((0xC3,), ""), Delta((0xA9,), "é")]


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("chunk", [1, 3, 7])
async def test_nothing_follows_an_end_token_wherever_it_falls_in_a_block(at: int, chunk: int) -> None:
    tokens = [97 + index for index in range(at)] + [256] + [120] * 7
    async with gateway(says(tokens, chunk, finish(STOP))) as served:
        deltas, end = await within(replies(served))
    assert joined(deltas) == ("abcdefgh"[:at], tokens[: at + 1])
    assert (end.reason, end.usage.completion_tokens) == ("stop", at + 1)


async def test_every_end_token_of_the_targets_set_counts() -> None:
    for last in (5, 6):
        async with gateway(says([97, last, 98, 99], 4, finish(STOP)), info=model(eos_token_ids=[5, 6])) as served:
            _, tokens = joined((await within(replies(served)))[0])
            assert tokens == [97, last]
            _, tokens = joined((await within(replies(served, ignore_eos=True)))[0])
            assert tokens == [97, last, 98, 99]
