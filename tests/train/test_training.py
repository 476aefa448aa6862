"""The trainer: it learns, it goes on where it was, and it refuses what cannot be learned from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.errors import InvalidField, ModelDamaged, TokenizerMismatch
from paceline.runtime.drafter_folder import TOKEN_IDS, read_facts, read_weights
from paceline.runtime.tokenizer import load_tokenizer
from paceline.train.checkpoint import Checkpoint
from paceline.train.corpus import Corpus
from paceline.train.trainer import TrainingDiverged
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model
from train.corpora import Taught, corpus_of, taught
from train.runs import CHECKPOINT, QUICK, train


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return taught(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(("kind", "dtype"), [("llama", "bfloat16"), ("qwen3", "float32")])
def test_a_student_learns_and_beats_its_start(kind: str, dtype: str, tmp_path: Path) -> None:
    figures = train(taught(tmp_path, kind), tmp_path / "out", dtype=dtype)
    assert figures is not None
    before, after = figures["untrained"], figures["validation"]
    assert after["loss"] < 0.9 * before["loss"]
    assert after["overlap"] > before["overlap"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [before, after]
    assert (tmp_path / "out" / "validation.svg").is_file()
    assert (tmp_path / "out" / "validation.png").is_file()


def test_a_stopped_run_goes_on_bit_for_bit(llama: Taught, tmp_path: Path) -> None:
    def after(steps: int) -> Callable[[], bool]:
        asked = iter([False] * steps + [True])
        return lambda: next(asked)

    assert train(llama, tmp_path / "whole") is not None
    assert train(llama, tmp_path / "parts", stop=after(3)) is None
    assert train(llama, tmp_path / "parts", stop=after(9), resume=True) is None
    assert train(llama, tmp_path / "parts", resume=True) is not None
    whole, parts = (Checkpoint.read(tmp_path / name / CHECKPOINT) for name in ("whole", "parts"))
    assert whole.place.step == parts.place.step > 12
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, parts.tensors[name]), name
    assert [each["loss"] for each in whole.place.metrics] == [each["loss"] for each in parts.place.metrics]


def test_a_run_of_minutes_ends_with_a_rate_of_zero(llama: Taught, tmp_path: Path) -> None:
    """Each look at the clock is 0.1 s later: one a step, one a validation. It goes on where it was, in time too."""
    seconds = itertools.count(start=0.0, step=0.1)
    assert train(llama, tmp_path, minutes=0.1, stop=iter([False, True]).__next__, clock=seconds.__next__) is None
    seconds = itertools.count(start=1000.0, step=0.1)
    figures = train(llama, tmp_path, minutes=0.1, resume=True, clock=seconds.__next__)
    assert figures is not None
    assert figures["seconds"] == pytest.approx(6.1, abs=0.11)
    assert 57 <= figures["steps"] <= 60
    held = Checkpoint.read(tmp_path / CHECKPOINT)
    assert held.optimizer["param_groups"][0]["lr"] < 0.01 * float(QUICK["learning_rate"])


def test_a_gradient_that_is_not_finite_ends_the_run(llama: Taught, tmp_path: Path) -> None:
    train(llama, tmp_path, stop=lambda: True)
    held = Checkpoint.read(tmp_path / CHECKPOINT)
    held.tensors["lm_head.weight"][0, 0] = torch.nan
    held.write(tmp_path / CHECKPOINT)
    broken = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(TrainingDiverged, match="--learning-rate"):
        train(llama, tmp_path, resume=True)
    assert (tmp_path / CHECKPOINT).read_bytes() == broken


def test_another_setting_or_corpus_is_no_way_to_go_on(llama: Taught, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidField, match="--resume"):
        train(llama, out, resume=True)
    train(llama, out, stop=lambda: True)
    with pytest.raises(InvalidField, match="--out"):
        train(llama, out)
    with pytest.raises(InvalidField, match="--learning-rate"):
        train(llama, out, resume=True, learning_rate=1e-4)
    other = taught(tmp_path, sequences=20)
    with pytest.raises(InvalidField, match="corpus"):
        train(other, out, resume=True)
    (out / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(ModelDamaged, match=r"checkpoint\.pt"):
        train(llama, out, resume=True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": (0, 5)}, "--layers.*0 to 4"),
        ({"layers": (1, 0)}, "--layers"),
        ({"minutes": 1.0, "epochs": 1.0}, "--epochs, --minutes"),
        ({"epochs": None}, "--epochs, --minutes"),
        ({"batch_tokens": 0}, "--batch-tokens"),
        ({"validation": 0.9}, "--validation"),
        ({"dtype": "float16"}, "dtype"),
    ],
)
def test_wrong_settings_are_refused_by_name(llama: Taught, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidField, match=named):
        train(llama, tmp_path / "out", **{"epochs": 1.0, **changes})
    assert not (tmp_path / "out").exists()


def test_a_corpus_of_another_tokenizer_is_refused(llama: Taught, tmp_path: Path) -> None:
    other = save_tokenizer(tiny_model(tmp_path / "other", num_hidden_layers=5, vocab=320), byte_level_tokenizer(290))
    with pytest.raises(TokenizerMismatch, match="other"):
        train(Taught(other, llama.corpus), tmp_path / "out")


def test_the_head_has_the_replies_most_frequent_tokens_and_the_end(llama: Taught, tmp_path: Path) -> None:
    train(llama, tmp_path, epochs=1.0, vocab=40)
    ids = np.load(tmp_path / "token_ids.npy")
    assert len(ids) == 40
    assert (np.diff(ids) > 0).all()
    corpus = Corpus.open(llama.corpus)
    counts = np.zeros(320, np.int64)
    for index in range(len(corpus)):
        np.add.at(counts, corpus[index].tokens[corpus[index].prompt_length :], 1)
    special = load_tokenizer(llama.target).eos_token_ids
    others = [token for token in range(320) if token not in ids and token not in special]
    assert counts[others].max() <= counts[[token for token in ids if token not in special]].min()


def test_a_run_begins_with_an_earlier_drafter(llama: Taught, tmp_path: Path) -> None:
    train(llama, tmp_path / "first", layers=(0, 4))
    first = read_weights(tmp_path / "first", "first")
    figures = train(llama, tmp_path / "second", start=tmp_path / "first", epochs=1.0, learning_rate=1e-7)
    assert figures is not None
    assert read_facts(tmp_path / "second", "second").layers == (0, 4)
    second = read_weights(tmp_path / "second", "second")
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)
    assert np.array_equal(np.load(tmp_path / "first" / TOKEN_IDS), np.load(tmp_path / "second" / TOKEN_IDS))
    train(llama, tmp_path / "third", start=tmp_path / "first", stop=lambda: True)
    np.save(tmp_path / "first" / TOKEN_IDS, np.arange(128, dtype=np.int32))
    with pytest.raises(InvalidField, match=r"--start: .*the head that the run began with"):
        train(llama, tmp_path / "third", start=tmp_path / "first", resume=True)
    for changes, named in (({"vocab": 64}, "--vocab"), ({"layers": (0, 1)}, "--layers")):
        with pytest.raises(InvalidField, match=named):
            train(llama, tmp_path / "none", start=tmp_path / "first", **changes)
    with pytest.raises(InvalidField, match="--start"):
        train(llama, tmp_path / "none", start=llama.target)
    with pytest.raises(InvalidField, match="--start"):
        train(taught(tmp_path / "other", sequences=8, vocab=330), tmp_path / "none", start=tmp_path / "first")


def test_a_run_goes_on_with_its_corpora_in_the_same_order(llama: Taught, tmp_path: Path) -> None:
    """Else other sequences would be held out."""
    more = corpus_of(llama.target, tmp_path / "more", 8, seed=5)
    out = tmp_path / "out"
    train(llama, out, more=[more], stop=lambda: True)
    with pytest.raises(InvalidField, match=r"--resume: .*lengths"):
        train(Taught(llama.target, more), out, more=[llama.corpus], resume=True)
    held = Checkpoint.read(out / CHECKPOINT)
    del held.identity["lengths"]
    held.write(out / CHECKPOINT)
    train(llama, out, more=[more], resume=True, stop=lambda: True)  # as a run of an earlier version, without it


def test_several_corpora_are_one(llama: Taught, tmp_path: Path) -> None:
    more = corpus_of(llama.target, tmp_path / "more", 8, seed=5)
    first, second, both = Corpus.open(llama.corpus), Corpus.open(more), Corpus.open(llama.corpus, more)
    assert len(both) == len(first) + 8
    assert np.array_equal(both[len(first) + 3].tokens, second[3].tokens)
    assert both.info.reply_tokens == first.info.reply_tokens + second.info.reply_tokens
    other = taught(tmp_path / "other", sequences=4).corpus
    with pytest.raises(InvalidField, match=r"--corpus: got .*allowed: corpora with the target"):
        Corpus.open(llama.corpus, other)
    with pytest.raises(InvalidField, match=r"--corpus: .*allowed: each folder once"):
        Corpus.open(llama.corpus, more, more.parent / "." / "more")
