"""Replies with stop strings, token by token, as target and gateway both run them (C3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.errors import InvalidField
from paceline.runtime.reply_text import ReplyText
from paceline.runtime.tokenizer import TextTokenizer
from paceline.runtime.toy_tokenizer import ToyTokenizer
from support.text_kinds import EOS, SAMPLE, byte_level, sentencepiece, wrapped

WORDS = ["so ", "EN", "D", "GINE", "xENDy", " ", "ok", "END", ".", "</end>"]
TOY = ToyTokenizer(WORDS, frozenset({9}))


def read(tokenizer: TextTokenizer, stops: Sequence[str], tokens: Sequence[int]) -> tuple[str, int, str | None]:
    """Text shown, tokens used, match."""
    reply, shown = ReplyText(tokenizer, stops), ""
    for used, token in enumerate(tokens, 1):
        outcome = reply.push(token)
        shown += outcome.text
        if outcome.matched is not None:
            return shown, used, outcome.matched
    outcome = reply.flush()
    return shown + outcome.text, len(tokens), outcome.matched


@pytest.mark.parametrize(
    ("stops", "words", "text", "used", "matched"),
    [
        (["END"], ["END", "ok", "ok"], "", 1, "END"),  # (a) in the first token of a block
        (["END"], ["so ", "EN", "D", "ok"], "so ", 3, "END"),  # (b) over two rounds
        (["END"], ["so ", "xENDy", "ok"], "so x", 2, "END"),  # (c) inside one token
        (["END"], ["so ", "EN", "GINE", "ok"], "so ENGINEok", 4, None),  # (d) its beginning only
        (["END.", "ND"], ["so ", "EN", "D", "."], "so E", 3, "ND"),  # (e) two that overlap: complete first
        (["ND", "END"], ["so ", "EN", "D", "."], "so ", 3, "END"),  # (e) complete together: starts first
        (["END", "END."], ["END", "."], "", 1, "END"),  # (e) one begins the other
        (["END"], ["so ", "EN", "</end>"], "so EN", 3, None),  # held to the end of the reply
        ([], ["so ", "END", "</end>"], "so END", 3, None),
    ],
)
def test_text_and_tokens_end_with_the_match(
    stops: list[str], words: list[str], text: str, used: int, matched: str | None
) -> None:
    assert read(TOY, stops, [WORDS.index(word) for word in words]) == (text, used, matched)


def test_the_beginning_of_a_stop_string_is_not_shown() -> None:
    reply = ReplyText(TOY, ["END"])
    outcomes = [reply.push(WORDS.index(word)) for word in ("so ", "EN", "D")]
    assert [outcome.text for outcome in outcomes] == ["so ", "", ""]


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
@pytest.mark.parametrize("stop", ["안녕", "👩‍👧", "녕 ", "k  ", "\n", "\n\n1", "ř", "one of none"])
def test_every_kind_of_tokenizer_stops_at_the_token_that_completes_it(kind: type, stop: str) -> None:
    """Also where that token is a single byte whose text is not certain yet."""
    tokenizer = wrapped(kind())
    tokens = [index for index in tokenizer.encode(SAMPLE) if index not in tokenizer.special_ids().values()]
    text, used, matched = read(tokenizer, [stop], tokens)
    if stop not in SAMPLE:
        assert (text, used, matched) == (SAMPLE, len(tokens), None)
        return
    assert (text, matched) == (SAMPLE[: SAMPLE.index(stop)], stop)
    assert stop in tokenizer.decode(tokens[:used])
    assert stop not in tokenizer.decode(tokens[: used - 1])


def test_a_stop_string_of_newline_bytes_ends_the_reply_at_once() -> None:
    tokenizer = wrapped(sentencepiece())
    newline = tokenizer.token_table().index("<0x0A>")
    reply = ReplyText(tokenizer, ["\n"])
    assert reply.push(tokenizer.encode("one")[1]).matched is None
    assert reply.push(newline).matched == "\n"


def test_an_incomplete_character_can_complete_a_match_only_at_the_end() -> None:
    tokenizer = wrapped(byte_level())
    first = tokenizer.encode("👩")[0]
    reply = ReplyText(tokenizer, ["\ufffd"])
    assert reply.push(first).matched is None
    assert reply.flush().matched == "\ufffd"
    assert read(tokenizer, ["\ufffd"], tokenizer.encode("👩")) == ("👩", 4, None)


def test_an_end_token_is_not_shown_and_completes_nothing() -> None:
    tokenizer = wrapped(byte_level())
    tokens = [*tokenizer.encode("one"), tokenizer.token_table().index(EOS)]
    assert read(tokenizer, ["</s>"], tokens) == ("one", len(tokens), None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidField, match="stop"):
        ReplyText(TOY, [""])
