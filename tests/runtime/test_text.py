"""Tokenizers, incremental text and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound
from paceline.runtime.detokenizer import Detokenizer
from paceline.runtime.reply_text import ReplyText
from paceline.runtime.stop import StopMatcher
from paceline.runtime.tokenizer import HuggingFaceTokenizer, first_difference, load_tokenizer
from paceline.runtime.toy_tokenizer import ToyTokenizer
from support.tiny import byte_level_tokenizer, metaspace_tokenizer, save_tokenizer, tiny_model

SAMPLE = "Příliš žluťoučký 안녕 👩‍👩‍👧 ok  two  spaces"
KINDS = {"byte_level": byte_level_tokenizer, "metaspace": metaspace_tokenizer}


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return load_tokenizer(save_tokenizer(tmp_path_factory.mktemp(request.param), KINDS[request.param]()))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_joined_pieces_are_one_decoding(tokenizer: HuggingFaceTokenizer, chunk: int) -> None:
    ids = tokenizer.encode(SAMPLE)
    assert tokenizer.decode(ids) == SAMPLE
    for length in range(len(ids) + 1):  # every end, also in the middle of a character
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.push(ids[start : min(length, start + chunk)]) for start in range(0, length, chunk)]
        assert "\ufffd" not in "".join(pieces)
        joined, whole = "".join(pieces) + detokenizer.flush(), tokenizer.decode(ids[:length])
        if "\ufffd" not in whole:
            assert joined == whole
        else:  # cut inside a character: nothing that was shown is taken back
            assert SAMPLE.startswith(joined.rstrip("\ufffd"))
            assert len(joined) >= len(whole.rstrip("\ufffd"))


def test_text_that_is_no_utf8_is_released_in_the_end() -> None:
    class Broken(ToyTokenizer):
        def decode(self, ids: Sequence[int]) -> str:
            return "\ufffd" * len(ids)

    detokenizer = Detokenizer(Broken(["x"]))
    text = detokenizer.push([0] * 500)
    assert text, "bytes that never become a character are not held for ever"
    assert text + detokenizer.flush() == "\ufffd" * 500


def test_end_tokens_have_no_text(tokenizer: HuggingFaceTokenizer) -> None:
    end = next(iter(tokenizer.eos_token_ids))
    assert Detokenizer(tokenizer).push([*tokenizer.encode("ok"), end]) == "ok"


def test_one_tokenizer_serves_many_threads(tokenizer: HuggingFaceTokenizer) -> None:
    texts = [SAMPLE * (1 + index % 7) for index in range(32)]
    serial = [tokenizer.encode(text) for text in texts]

    def work(index: int) -> bool:
        return all(
            tokenizer.encode(texts[index]) == serial[index] and tokenizer.decode(serial[index]) == texts[index]
            for _ in range(100)
        )

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(work, range(32)))


def test_chat_and_its_faults(tokenizer: HuggingFaceTokenizer) -> None:
    ids = tokenizer.apply_chat([("user", "ok")])
    assert tokenizer.decode(ids) == "<user>ok\n<assistant>"
    with pytest.raises(InvalidField, match="surrogate"):
        tokenizer.apply_chat([("user", "a\ud83d")])
    with pytest.raises(InvalidField, match="character 1"):
        tokenizer.encode("a\ud83d")
    assert tokenizer.decode(tokenizer.encode("a\x00b")) == "a\x00b"


def test_the_fingerprint_tells_tokenizers_apart(tmp_path: Path) -> None:
    def saved(name: str, tokenizer: Tokenizer) -> HuggingFaceTokenizer:
        return load_tokenizer(save_tokenizer(tmp_path / name, tokenizer))

    first, same = saved("a", byte_level_tokenizer()), saved("b", byte_level_tokenizer())
    assert first.fingerprint == same.fingerprint
    assert first_difference(first, same) is None
    larger = byte_level_tokenizer()
    larger.add_tokens(["<extra>"])
    found = first_difference(first, saved("c", larger))
    assert found is not None
    assert "'<extra>'" in found
    assert str(first.vocab_size) in found
    other = first_difference(ToyTokenizer(["a", "b"]), ToyTokenizer(["a", "c"]))
    assert other == "id 1 is 'b' in one and 'c' in the other"


def test_the_vocabulary_ends_with_the_tokenizer_not_with_the_padding(tmp_path: Path) -> None:
    folder = save_tokenizer(tiny_model(tmp_path, vocab=512), byte_level_tokenizer(400))
    assert load_tokenizer(folder).vocab_size <= 400


def test_the_whole_set_of_end_tokens(tmp_path: Path) -> None:
    folder = save_tokenizer(tiny_model(tmp_path, vocab=512, eos_token_id=3))
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert load_tokenizer(folder).eos_token_ids == {0, 3, 5, 9}


def test_missing_and_damaged_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no tokenizer"):
        load_tokenizer(tmp_path)
    save_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelDamaged, match="fetch"):
        load_tokenizer(tmp_path)


def shown(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher, out = StopMatcher(stops), []
    for piece in pieces:
        outcome = matcher.push(piece)
        out.append(outcome.text)
        if outcome.matched is not None:
            return out, outcome.matched
    return [*out, matcher.flush()], None


@pytest.mark.parametrize(
    ("stops", "pieces", "texts", "matched"),
    [
        (["END"], ["ENDabc"], [""], "END"),  # at the start of a block
        (["END"], ["so EN", "D"], ["so ", ""], "END"),  # over two blocks: no "EN" is shown
        (["END"], ["xENDy"], ["x"], "END"),  # inside one token
        (["END"], ["a EN", "GINE", "!"], ["a ", "ENGIN", "E!", ""], None),  # only its beginning
        (["EN"], ["x E"], ["x ", "E"], None),  # held to the last
        (["END", "ND"], ["xEND"], ["x"], "END"),  # overlapping: the one that starts first
        (["EN", "END"], ["xEND"], ["x"], "END"),  # same start: the longest
        (["aab"], ["aa", "ab"], ["", "a"], "aab"),  # a held beginning that moves on
        ([], ["END"], ["END", ""], None),
    ],
)
def test_stop_strings(stops: list[str], pieces: list[str], texts: list[str], matched: str | None) -> None:
    assert shown(stops, pieces) == (texts, matched)


@pytest.mark.parametrize("split", range(1, 9))
def test_a_stop_string_is_found_however_the_text_is_cut(split: int) -> None:
    text = "one END two END"
    pieces = [text[start : start + split] for start in range(0, len(text), split)]
    out, matched = shown(["END"], pieces)
    assert ("".join(out), matched) == ("one ", "END")


def test_reply_text_names_the_token_that_completes_the_match() -> None:
    words = ToyTokenizer(["a ", "xEN", "Dy", "b"])
    reply = ReplyText(words, ["END"])
    outcomes = [reply.push(token) for token in (0, 1, 2)]
    assert [outcome.text for outcome in outcomes] == ["a ", "x", ""]
    assert [outcome.matched for outcome in outcomes] == [None, None, "END"]
    unstopped = ReplyText(words, ["END"])
    unstopped.push(1)
    assert unstopped.flush().text == "EN"
