"""The conversion, on a fabricated GGUF file of the default model's kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from transformers import AutoModelForCausalLM

from paceline.errors import ModelDamaged
from paceline.runtime.convert import _spelled, check_text, convert_gguf, read_text_of
from paceline.runtime.tokenizer import load_tokenizer
from support.text_kinds import byte_level

WIDTH, LAYERS, HEADS, HIDDEN = 32, 1, 2, 64
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}<|im_start|>"


def write_gguf(path: Path, *, template: str | None = TEMPLATE, pre: str = "smollm") -> np.ndarray:
    """A llama of one layer with a byte-level tokenizer. Returns its embedding [vocab, width] float32."""
    model = json.loads(byte_level().to_str())["model"]
    tokens = [*CONTROL, *model["vocab"]]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)
    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> np.ndarray:
        values = rng.standard_normal(shape).astype(np.float32)
        writer.add_tensor(name, values)
        return values

    embedding = tensor("token_embd.weight", len(tokens), WIDTH)
    tensor("output_norm.weight", WIDTH)
    for part in ("attn_norm", "ffn_norm"):
        tensor(f"blk.0.{part}.weight", WIDTH)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensor(f"blk.0.{part}.weight", WIDTH, WIDTH)
    for part in ("ffn_gate", "ffn_up"):
        tensor(f"blk.0.{part}.weight", HIDDEN, WIDTH)
    tensor("blk.0.ffn_down.weight", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return embedding


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("converted")
    embedding = write_gguf(folder.parent / "model.gguf")
    convert_gguf(folder.parent / "model.gguf", folder)
    return folder, embedding


def test_weights_are_those_of_the_file(converted: tuple[Path, np.ndarray]) -> None:
    folder, embedding = converted
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert np.array_equal(model.get_input_embeddings().weight.detach().numpy(), embedding)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_an_instruct_model_stays_one(converted: tuple[Path, np.ndarray]) -> None:
    folder, _ = converted
    tokenizer = load_tokenizer(folder)
    assert tokenizer.token_table()[:3] == CONTROL
    assert tokenizer.eos_token_ids == {2}
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert tokenizer.apply_chat([("user", "one")]) == [1, *tokenizer.encode("one"), 2, 1]
    assert tokenizer.decode([1, *tokenizer.encode("one"), 2]) == "one"


def test_digits_are_split_as_the_file_asks(converted: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    def first(folder: Path) -> str:
        tokenizer = load_tokenizer(folder)
        return tokenizer.decode(tokenizer.encode("\n\n1")[:1])

    folder, _ = converted
    write_gguf(tmp_path / "model.gguf", pre="gpt-2")
    (tmp_path / "plain").mkdir()
    convert_gguf(tmp_path / "model.gguf", tmp_path / "plain")
    assert first(folder) == "\n\n"
    assert first(tmp_path / "plain") == "\n"


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelDamaged, match=r"model.gguf cannot be converted.*fetch it again"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")


def edited(name: str, **changes: Any) -> Any:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        for key, value in changes.items():
            content[key] = value
        (folder / name).write_text(json.dumps(content))

    return apply


def not_special(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = [token | {"special": token["id"] != 1} for token in content["added_tokens"]]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    edited("tokenizer_config.json", bos_token=None)(folder)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "chat_template.jinja").unlink(), "chat template was lost"),
        (edited("generation_config.json", eos_token_id=0), "does not end at '<|im_end|>'"),
        (not_special, "the control token '<|im_start|>' shows as text"),
    ],
)
def test_a_conversion_that_lost_something_is_refused(
    converted: tuple[Path, np.ndarray], tmp_path: Path, spoil: Any, says: str
) -> None:
    folder, _ = converted
    text = read_text_of(folder.parent / "model.gguf")
    check_text(folder, text)
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    spoil(tmp_path)
    with pytest.raises(ModelDamaged) as caught:
        check_text(tmp_path, text)
    assert says in str(caught.value)


def test_runs_of_spaces_are_spelled_as_the_tokenizer_spells_them() -> None:
    assert [_spelled(token) for token in ("   ", " ", "▁▁", " a", "")] == ["▁▁▁", " ", "▁▁", " a", ""]
