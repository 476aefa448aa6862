"""The embedding of a folder is the model's own, however it is stored, and its fingerprint is of its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from paceline.errors import ModelDamaged
from paceline.runtime.embedding import EmbeddingFacts, read_embedding
from support.tiny import tiny_model


@pytest.mark.parametrize("tied", [False, True])
def test_it_is_the_models_own(tied: bool, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, tie_word_embeddings=tied)
    own = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
    assert torch.equal(read_embedding(folder, "tiny"), own)
    weights = load_file(folder / "model.safetensors")
    other = torch.zeros(4, 4)
    save_file({**weights, "vision.embed_tokens.weight": other}, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(read_embedding(folder, "tiny"), own), "two of that name: the model itself is asked"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelDamaged, match=r"tiny: model\.safetensors"):
        read_embedding(folder, "tiny")


def test_a_fingerprint_is_of_values_and_shape() -> None:
    weight = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    facts = EmbeddingFacts.of(weight)
    assert (facts.rows, facts.width) == (50, 8)
    assert EmbeddingFacts.of(weight.float()) == facts
    assert EmbeddingFacts.of(weight.reshape(100, 4)) != facts
    changed = weight.clone()
    changed[49, 7] += 1
    assert EmbeddingFacts.of(changed).sha256 != facts.sha256
