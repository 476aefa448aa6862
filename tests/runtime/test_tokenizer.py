"""Tokenizers of model folders: ids, chat, ends, threads, fingerprints (C6, D2, D3, D6, H1)."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound, ModelUnsupported
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import HuggingFaceTokenizer, TextTokenizer, first_difference, load_tokenizer
from paceline.runtime.toy_tokenizer import ToyTokenizer
from support.text_kinds import BOS, EOS, KINDS, SAMPLE, byte_level, sentencepiece, wrapped

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ raise_exception('no system turns') }}"
    "{% endif %}<mark>{{ message['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<mark>{% endif %}"
)


def saved(folder: Path, change: Callable[[PreTrainedTokenizerFast], None] = lambda _: None, **configs: object) -> Path:
    """A folder with a byte-level tokenizer; `configs` are written as NAME.json."""
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token=BOS, eos_token=EOS, unk_token="<unk>")
    change(fast)
    fast.save_pretrained(folder)
    for name, content in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("text", [SAMPLE, "", " ", "\n", "a\x00b", "  lead and trail  ", "\t\r\n", "𝄞", "\U0010ffff"])
def test_text_comes_back_as_it_was(kind: str, text: str) -> None:
    tokenizer = wrapped(KINDS[kind]())
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= index < tokenizer.vocab_size for index in ids)


def test_ids_are_those_of_transformers() -> None:
    """A prompt gets what the model was trained to see before one, here BOS."""
    tokenizer = sentencepiece()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
    ours = wrapped(tokenizer)
    assert ours.encode(SAMPLE) == fast(SAMPLE)["input_ids"]
    assert ours.encode(SAMPLE)[0] == tokenizer.token_to_id(BOS)
    assert ours.decode(ours.encode(SAMPLE)) == fast.decode(fast(SAMPLE)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize(("text", "place"), [("\ud83d", 0), ("ok \udc00", 3), ("👩\ud83d!", 1)])
def test_a_lone_surrogate_is_refused_by_its_place(text: str, place: int) -> None:
    tokenizer = wrapped(byte_level(), TEMPLATE)
    with pytest.raises(InvalidField, match=f"text: .*surrogate.* at character {place}"):
        tokenizer.encode(text)
    with pytest.raises(InvalidField, match=rf"chat.messages\[1\].content: .* at character {place}"):
        tokenizer.apply_chat([("user", "a"), ("user", text)])
    with pytest.raises(InvalidField, match=rf"chat.messages\[0\].role: .* at character {place}"):
        tokenizer.apply_chat([(text, "a")])


def test_chat_is_what_the_template_writes() -> None:
    tokenizer = wrapped(sentencepiece(), TEMPLATE)
    mark, eos = (tokenizer.token_table().index(name) for name in ("<mark>", EOS))
    ids = tokenizer.apply_chat([("user", "one")])
    assert [ids[0], *ids[-2:]] == [mark, eos, mark]
    assert tokenizer.decode(ids) == "one"
    assert tokenizer.token_table().index(BOS) not in ids  # it is for the template to write


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (None, [("user", "a")], "chat: .*no chat template"),
        (TEMPLATE, [], "chat.messages: .*at least one message"),
        (TEMPLATE, [("system", "a")], "chat.messages: .*no system turns"),
        ("{{ messages[5].content }}", [("user", "a")], "chat.messages: "),
        ("{% for %}", [("user", "a")], "chat.messages: "),
    ],
)
def test_chat_that_cannot_be(template: str | None, messages: list[tuple[str, str]], says: str) -> None:
    tokenizer = wrapped(byte_level(), template)
    assert tokenizer.has_chat_template == (template is not None)
    with pytest.raises(InvalidField, match=says):
        tokenizer.apply_chat(messages)


@pytest.mark.parametrize(
    ("configs", "ends"),
    [
        ({}, {EOS}),
        ({"generation_config": {"eos_token_id": [300, 301]}}, {EOS, 300, 301}),
        ({"generation_config": {"eos_token_id": 300}, "config": {"eos_token_id": 301}}, {EOS, 300, 301}),
        ({"generation_config": {}, "config": {"eos_token_id": None}}, {EOS}),
    ],
)
def test_the_whole_set_of_ends_is_read(tmp_path: Path, configs: dict[str, object], ends: set[object]) -> None:
    tokenizer = load_tokenizer(saved(tmp_path, **configs))
    table = tokenizer.token_table()
    assert tokenizer.eos_token_ids == {table.index(end) if isinstance(end, str) else end for end in ends}
    assert tokenizer.decode([*tokenizer.encode("one"), *tokenizer.eos_token_ids]) == "one"


def test_vocabulary_is_what_can_be_emitted(tmp_path: Path) -> None:
    """Embeddings of two sizes of a family are padded differently; their tokenizer is the same."""
    sizes = (336, 512)
    first, second = (
        load_tokenizer(saved(tmp_path / str(size), config={"vocab_size": size, "model_type": "llama"}))
        for size in sizes
    )
    assert first.vocab_size == second.vocab_size == len(first.token_table()) < min(sizes)
    assert first_difference(first, second) is None


def test_added_tokens_count(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(tmp_path, lambda fast: fast.add_tokens([AddedToken("<tool>")])))
    assert tokenizer.token_table()[-1] == "<tool>"
    assert tokenizer.encode("<tool>") == [tokenizer.vocab_size - 1]


def test_a_folder_that_asks_for_truncation_does_not_get_it(tmp_path: Path) -> None:
    def shorten(fast: PreTrainedTokenizerFast) -> None:
        fast.backend_tokenizer.enable_truncation(4)
        fast.backend_tokenizer.enable_padding(length=64)

    tokenizer = load_tokenizer(saved(tmp_path, shorten))
    assert '"max_length": 4' in (tmp_path / "tokenizer.json").read_text()
    assert tokenizer.decode(tokenizer.encode(SAMPLE)) == SAMPLE
    assert len(tokenizer.encode("one")) < 4


def test_one_tokenizer_serves_many_threads() -> None:
    """32 workers, 100 calls each, long and short texts, encoding, decoding and chat; ids as when alone."""
    tokenizer = wrapped(sentencepiece(), TEMPLATE)
    texts = [SAMPLE * (1 + 40 * (index % 8 == 0)) + str(index) for index in range(32)]
    serial = [(tokenizer.encode(text), tokenizer.apply_chat([("user", text)])) for text in texts]

    def work(worker: int) -> None:
        for call in range(100):
            index = (worker + call) % len(texts)
            ids, chat = serial[index]
            assert tokenizer.encode(texts[index]) == ids
            assert tokenizer.apply_chat([("user", texts[index])]) == chat
            assert tokenizer.decode(ids) == texts[index]

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))


def test_the_first_difference_is_named() -> None:
    def toy(*words: str) -> ToyTokenizer:
        return ToyTokenizer(words)

    assert first_difference(toy("a", "b"), toy("a", "b")) is None
    assert first_difference(toy("a", "b", "c"), toy("a", "x", "y")) == "id 1 is 'b' in one and 'x' in the other"
    longer = first_difference(toy("a", "b"), toy("a"))
    assert longer == "one has 2 tokens, the other 1; id 1 ('b') is in one only"
    assert first_difference(toy("a"), toy("a", "b")) == "one has 1 tokens, the other 2; id 1 ('b') is in one only"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda fast: setattr(fast, "bos_token", "<mark>"), "the bos id is {bos} in one and {mark} in the other"),
        (lambda fast: setattr(fast, "eos_token", "<mark>"), "the eos id is {eos} in one and {mark} in the other"),
        (lambda fast: setattr(fast, "unk_token", None), "the unk id is {unk} in one and None in the other"),
        (lambda fast: setattr(fast, "pad_token", "<mark>"), None),
    ],
)
def test_special_ids_are_part_of_the_fingerprint(
    tmp_path: Path, change: Callable[[PreTrainedTokenizerFast], None], says: str | None
) -> None:
    plain, changed = load_tokenizer(saved(tmp_path / "a")), load_tokenizer(saved(tmp_path / "b", change))
    ids = {name: plain.token_table().index(token) for name, token in _NAMES.items()}
    assert first_difference(plain, changed) == (None if says is None else says.format(**ids))
    assert (plain.fingerprint == changed.fingerprint) == (says is None)


_NAMES = {"bos": BOS, "eos": EOS, "unk": "<unk>", "mark": "<mark>"}


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (lambda folder: [file.unlink() for file in folder.iterdir()], ModelNotFound, "holds no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), ModelDamaged, "fetch the model again"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"version": "1.0"}'), ModelDamaged, "fetch"),
        (lambda folder: (folder / "generation_config.json").write_text("["), ModelDamaged, "generation_config.json"),
        (lambda folder: (folder / "config.json").write_text('{"eos_token_id": "x"}'), ModelDamaged, "not an id"),
        (lambda folder: (folder / "config.json").write_text('{"eos_token_id": [-1]}'), ModelDamaged, "not an id"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text(
                '{"auto_map": {"AutoTokenizer": ["code.Odd", null]}, "tokenizer_class": "Odd"}'
            ),
            ModelUnsupported,
            "code of its own",
        ),
    ],
)
def test_folders_that_cannot_be_read(
    tmp_path: Path, spoil: Callable[[Path], object], error: type[Exception], says: str
) -> None:
    spoil(saved(tmp_path))
    with pytest.raises(error, match=says):
        load_tokenizer(tmp_path)


def test_the_toy_tokenizer_keeps_the_contract() -> None:
    toy: TextTokenizer = ToyTokenizer.numbered(12, frozenset({3}))
    assert toy.encode("<1><11><3>") == [1, 11, 3]
    assert toy.decode([1, 11, 3]) == "<1><11>"
    assert toy.apply_chat([("user", "<1>"), ("user", "<2>")]) == [1, 2]
    with pytest.raises(InvalidField, match="words of the toy"):
        toy.encode("<1>x")


@pytest.fixture(scope="module")
def smollm() -> HuggingFaceTokenizer:
    return load_tokenizer(default_store().resolve("smollm2-135m-instruct"))


@pytest.mark.model
def test_default_model_writes_chatml(smollm: HuggingFaceTokenizer) -> None:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    expected = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi\n\n1.<|im_end|>\n<|im_start|>assistant\n"
    assert smollm.apply_chat([("user", "Hi\n\n1.")]) == smollm.encode(expected)
    own = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert smollm.apply_chat([("system", "Be brief."), ("user", "Hi")]) == smollm.encode(own)
    start, end = smollm.encode("<|im_start|><|im_end|>")
    assert smollm.apply_chat([("user", "Hi")]).count(start) == 3
    assert smollm.eos_token_ids == {end}
    assert smollm.decode([start, end]) == ""


@pytest.mark.model
def test_default_model_reads_text_as_it_was_trained_to(smollm: HuggingFaceTokenizer) -> None:
    """Digits come one by one, and what stands before them is split as if they were not there."""
    table = smollm.token_table()
    assert [table[index] for index in smollm.encode("\n\n12. a  3")] == ["ĊĊ", "1", "2", ".", "Ġa", "ĠĠ", "3"]
    assert smollm.vocab_size == 49152
    for text in (SAMPLE, "\x00", "  ", "def f(x):\n    return x ** 2\n"):
        assert smollm.decode(smollm.encode(text)) == text
