"""Incremental text: whatever the tokenizer and the chunks, joined it is one decoding of all tokens (D1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline.runtime.detokenizer import Detokenizer
from paceline.runtime.tokenizer import HuggingFaceTokenizer
from paceline.runtime.toy_tokenizer import ToyTokenizer
from support.text_kinds import BYTES, EOS, KINDS, MARK, SAMPLE, byte_level, sentencepiece, wrapped


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> HuggingFaceTokenizer:
    return wrapped(KINDS[request.param]())


def pieces(tokenizer: HuggingFaceTokenizer, ids: Sequence[int], chunk: int) -> list[str]:
    """Texts released for chunks of tokens, what comes at the end last."""
    detokenizer = Detokenizer(tokenizer)
    released = [detokenizer.push(ids[start : start + chunk]) for start in range(0, len(ids), chunk)]
    return [*released, detokenizer.flush()]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_joined_is_one_decoding_at_every_end(tokenizer: HuggingFaceTokenizer, chunk: int) -> None:
    """max_tokens may end a reply anywhere, also within an emoji."""
    ids = tokenizer.encode(SAMPLE)
    whole = tokenizer.decode(ids)
    for length in range(len(ids) + 1):
        found = pieces(tokenizer, ids[:length], chunk)
        assert "".join(found) == tokenizer.decode(ids[:length])
        # Nothing that a later token could change is shown.
        assert whole.startswith("".join(found[:-1]))
        assert "\ufffd" not in "".join(found[:-1])


def test_the_sample_splits_characters() -> None:
    """Else the tests above would show nothing: some ends are within a character."""
    for kind in (byte_level, sentencepiece):
        tokenizer = wrapped(kind())
        ids = tokenizer.encode(SAMPLE)
        assert tokenizer.decode(ids) == SAMPLE
        cut = [length for length in range(len(ids)) if tokenizer.decode(ids[:length]).endswith("\ufffd")]
        assert len(cut) > 5


@pytest.mark.parametrize("seed", range(40))
def test_joined_is_one_decoding_of_any_tokens(tokenizer: HuggingFaceTokenizer, seed: int) -> None:
    """A model may draw any tokens: bytes that make no character, special tokens in between, ends that are ignored."""
    rng = np.random.default_rng(seed)
    table = tokenizer.token_table()
    odd = [index for index, token in enumerate(table) if len(token) == 1 or token in BYTES or token in (MARK, EOS)]
    ids = [int(rng.choice(odd) if rng.random() < 0.7 else rng.integers(len(table))) for _ in range(120)]
    whole = tokenizer.decode(ids)
    for chunk in (1, 3):
        found = pieces(tokenizer, ids, chunk)
        assert "".join(found) == whole
    detokenizer, shown = Detokenizer(tokenizer), ""
    for index, token in enumerate(ids):
        shown += detokenizer.push([token])
        now = tokenizer.decode(ids[: index + 1])
        assert now.startswith(shown + detokenizer.tentative())
        assert whole.startswith(shown)


def test_special_tokens_have_no_text_and_do_not_part_bytes(tokenizer: HuggingFaceTokenizer) -> None:
    table = tokenizer.token_table()
    mark, eos = table.index(MARK), table.index(EOS)
    ids = [token for pair in ((index, mark) for index in tokenizer.encode(SAMPLE)) for token in pair]
    assert "".join(pieces(tokenizer, [*ids, eos], 1)) == tokenizer.decode(tokenizer.encode(SAMPLE))


def test_text_comes_as_soon_as_it_is_certain() -> None:
    tokenizer = wrapped(byte_level())
    ids = tokenizer.encode("a👩b")
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([index]) for index in ids] == ["a", "", "", "", "👩", "b"]


def test_a_row_of_byte_tokens_is_held_until_it_ends() -> None:
    """SentencePiece decoders take it back as a whole if it turns out not to be UTF-8."""
    tokenizer = wrapped(sentencepiece())
    table = tokenizer.token_table()
    row = [table.index(f"<0x{byte:02X}>") for byte in "é".encode()]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(row) == ""
    assert detokenizer.tentative() == "é"
    assert detokenizer.push(row[:1]) == ""
    assert detokenizer.tentative() == ""
    assert detokenizer.push(tokenizer.encode("one")[1:]) == "\ufffd" * 3 + " one"


def test_a_literal_replacement_character_is_text() -> None:
    tokenizer = wrapped(byte_level())
    ids = tokenizer.encode("a\ufffd\ufffdb\ufffd")
    assert "".join(pieces(tokenizer, ids, 1)) == "a\ufffd\ufffdb\ufffd"
    assert "".join(pieces(tokenizer, ids, 1)[:-1]) == "a\ufffd\ufffdb"


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        self.byte_tokens = tokenizer.byte_tokens
        self.decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return self._tokenizer.decode(ids)


def repeated(kind: str, what: str) -> tuple[HuggingFaceTokenizer, list[int]]:
    tokenizer = wrapped(KINDS[kind]())
    table = tokenizer.token_table()
    texts = {"text": tokenizer.encode(SAMPLE), "literal": tokenizer.encode("\ufffd"), "ends": [table.index(EOS)]}
    if what in ("continuation", "start"):
        value = 0x80 if what == "continuation" else 0xE2
        name = f"<0x{value:02X}>" if kind == "sentencepiece" else "Ģ" if value == 0x80 else "â"
        texts[what] = [table.index(name)]
    return tokenizer, texts[what]


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("what", ["text", "literal", "ends", "continuation", "start"])
def test_work_for_a_token_does_not_grow_with_the_text(kind: str, what: str) -> None:
    tokenizer, unit = repeated(kind, what)
    work = []
    for length in (500, 5000):
        ids = (unit * length)[:length]
        counting = Counting(tokenizer)
        detokenizer = Detokenizer(counting)  # type: ignore[arg-type]
        text = detokenizer.push(ids)
        work.append(counting.decoded / length)
        assert text + detokenizer.flush() == tokenizer.decode(ids)
    assert work[1] <= 1.2 * work[0] + 1
    assert work[1] < 150


def test_a_toy_tokenizer_reads_its_words() -> None:
    toy = ToyTokenizer(["a ", "b", "<end>"], frozenset({2}))
    assert Detokenizer(toy).push([0, 1, 2]) == "a b"
