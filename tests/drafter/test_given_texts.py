"""Texts that come in a fused drafter's folder: learned when the replica starts, never saved with what it served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.loading import load_store
from paceline.drafter.store_file import Tokenizer, write_store
from paceline.drafter.text_store import Texts
from paceline.errors import InvalidField, TokenizerMismatch
from paceline.runtime.drafter_folder import DrafterFacts, write_facts
from paceline.runtime.embedding import EmbeddingFacts
from paceline.runtime.shipped import TEXTS
from paceline.runtime.tokenizer import load_tokenizer
from support.tiny import save_tokenizer, tiny_model

GIVEN = Texts(np.asarray([1, 2, 3, 4, 5], dtype=np.int32), np.asarray([3, 2], dtype=np.int32))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_tokenizer(tiny_model(tmp_path / "target", vocab=400))


@pytest.fixture
def tokenizer(target: Path) -> Tokenizer:
    loaded = load_tokenizer(target)
    return Tokenizer(str(target), loaded.fingerprint, loaded.vocab_size)


@pytest.fixture
def drafter(tmp_path: Path, target: Path, tokenizer: Tokenizer) -> Path:
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({}))
    facts = DrafterFacts(str(target), tokenizer.fingerprint, EmbeddingFacts(400, 32, "0"), (0,), 8, "int8", {})
    write_facts(folder, facts)
    write_store(folder / TEXTS, GIVEN, tokenizer)
    return folder


def test_they_are_learned(drafter: Path, tokenizer: Tokenizer) -> None:
    kept = load_store(DrafterConfig(proposer="fused", model=str(drafter)))
    assert kept.tokenizer_fingerprint == tokenizer.fingerprint
    while kept.store.learn_part():
        pass
    assert kept.store.tokens == len(GIVEN.tokens)


def test_they_are_not_saved_with_what_was_served(drafter: Path, tmp_path: Path) -> None:
    file = tmp_path / "served.npz"
    config = DrafterConfig(proposer="fused", model=str(drafter), store_file=str(file), target_model=None)
    kept = load_store(config)
    kept.store.add([9, 9, 7, 8], 2)
    while kept.store.learn_part():
        pass
    assert kept.keeper is not None
    assert kept.keeper.save()
    with np.load(file) as archive:
        assert archive["tokens"].tolist() == [7, 8]


@pytest.mark.parametrize("changes", [{"proposer": "model"}, {"store_mb": 0}])
def test_nobody_else_reads_them(drafter: Path, changes: dict[str, object]) -> None:
    config = DrafterConfig.model_validate({"proposer": "fused", "model": str(drafter), **changes})
    assert not load_store(config).store.waiting


def test_damage_and_another_tokenizer_are_named(drafter: Path, tokenizer: Tokenizer) -> None:
    config = DrafterConfig(proposer="fused", model=str(drafter))
    write_store(drafter / TEXTS, GIVEN, tokenizer._replace(fingerprint="other"))
    with pytest.raises(TokenizerMismatch, match=r"texts\.npz .* holds ids of the tokenizer"):
        load_store(config)
    (drafter / TEXTS).write_bytes(b"no archive")
    with pytest.raises(InvalidField, match=r"texts\.npz: got"):
        load_store(config)
