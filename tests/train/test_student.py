"""What a student begins as, and what it is told: rows at the right places, over the head's columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.errors import InvalidField
from paceline.train.batches import Batcher, epoch_plan
from paceline.train.corpus import Corpus
from paceline.train.loss import Agreement, distillation_loss
from paceline.train.run_length import RunLength, rate
from paceline.train.student import chosen_layers, initial_student
from paceline.train.target_folder import TargetFolder
from train.corpora import ROWS, Taught, taught


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Taught:
    return taught(tmp_path_factory.mktemp("given"), request.param, sequences=12, tie_word_embeddings=True)


@torch.inference_mode()
def test_with_all_layers_it_is_its_target(given: Taught) -> None:
    """Rows of a padded batch are those of each sequence alone, and the teacher's own: nothing is left to learn."""
    target = TargetFolder.open("target", given.target)
    student = initial_student(given.target, "target", range(5), None, target.embedding)
    corpus = Corpus.open(given.corpus)
    batch = Batcher(corpus, None, 320, 1.0, 0.0).batch(range(len(corpus)))
    logits = student.logits(batch)
    assert logits.shape == (corpus.info.reply_tokens, 320)
    model, at = AutoModelForCausalLM.from_pretrained(given.target), 0
    for index in range(len(corpus)):
        each = corpus[index]
        rows = model(torch.tensor([each.tokens.tolist()])).logits[0, each.prompt_length - 1 : -1]
        torch.testing.assert_close(logits[at : at + len(rows)], rows, rtol=1e-4, atol=1e-4)
        at += len(rows)
    agreement = Agreement()
    agreement.add(logits[:, :300], batch)  # the corpus was written without padding ids
    assert agreement.means()["top1"] > 0.99, "but for ties in float16"
    assert agreement.means()["overlap"] == pytest.approx(float(batch.teacher.sum() / len(batch.teacher)), abs=0.01)


def test_chosen_layers_are_in_their_places(given: Taught) -> None:
    target = TargetFolder.open("target", given.target)
    ids = np.asarray([3, 5, 200], np.int32)
    student = initial_student(given.target, "target", (1, 4), ids, target.embedding)
    theirs = AutoModelForCausalLM.from_pretrained(given.target).state_dict()
    own = student.tensors()
    for number, layer in enumerate((1, 4)):
        for part in ("self_attn.k_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"):
            assert torch.equal(own[f"model.layers.{number}.{part}"], theirs[f"model.layers.{layer}.{part}"])
    assert torch.equal(own["model.norm.weight"], theirs["model.norm.weight"])
    assert torch.equal(own["lm_head.weight"], theirs["model.embed_tokens.weight"][ids.tolist()])
    assert not any("embed" in name for name in own)


def test_default_layers() -> None:
    assert chosen_layers((), 30) == (0, 1, 28, 29)
    assert chosen_layers((), 3) == (0, 1, 2)
    assert chosen_layers((), 1) == (0,)
    with pytest.raises(InvalidField, match=r"--layers.*0 to 3"):
        chosen_layers((0, 4), 4)


@pytest.mark.parametrize(("temperature", "argmax"), [(1.0, 0.0), (0.5, 0.0), (1.0, 0.25)])
def test_the_loss_is_the_divergence_from_the_restricted_row(given: Taught, temperature: float, argmax: float) -> None:
    """Beside the definition, row by row in float64; a student that has learned it has loss 0, and no other."""
    corpus = Corpus.open(given.corpus)
    ids = np.unique(corpus[0].row_ids[:, :3])[::2].astype(np.int32)
    batch = Batcher(corpus, ids, 320, temperature, argmax).batch([0, 1])
    logits = torch.randn(len(batch.weights), len(ids), generator=torch.Generator().manual_seed(0))
    rows = np.concatenate([corpus[index].row_ids for index in (0, 1)])
    logs = np.concatenate([corpus[index].row_log_probs for index in (0, 1)]).astype(np.float64)
    total = 0.0
    for row, (row_ids, row_logs) in enumerate(zip(rows, logs, strict=True)):
        kept = [k for k in range(ROWS) if row_ids[k] in ids]
        if not kept:
            continue
        probs = np.exp(row_logs[kept] / temperature)
        probs /= probs.sum()
        if argmax and kept[0] == 0:
            probs = (1 - argmax) * probs + argmax * np.eye(len(kept))[0]
        columns = np.searchsorted(ids, row_ids[kept])
        student = torch.log_softmax(logits[row].double(), 0).numpy()[columns]
        total += np.exp(row_logs[kept]).sum() * (probs * (np.log(probs) - student)).sum()
    loss = distillation_loss(logits, batch)
    assert float(loss) == pytest.approx(total / len(rows), rel=1e-4)
    whole = Batcher(corpus, None, 320, temperature, argmax).batch([0, 1])
    learned = torch.full((len(rows), 320), -1e4).scatter(1, whole.columns, whole.probs.log())
    assert float(distillation_loss(learned, whole)) == pytest.approx(0, abs=1e-5)


def test_tokens_outside_the_head_are_misses(given: Taught) -> None:
    corpus = Corpus.open(given.corpus)
    first = corpus[0].row_ids[:, 0]
    ids = np.setdiff1d(np.arange(320), first[:1]).astype(np.int32)
    batch = Batcher(corpus, ids, 320, 1.0, 0.0).batch([0])
    logits = torch.zeros(len(batch.weights), len(ids))
    logits[torch.arange(len(first)), torch.from_numpy(np.searchsorted(ids, first))] = 9.0
    agreement = Agreement()
    agreement.add(logits, batch)
    assert agreement.top1 == agreement.top4 == int((first != first[0]).sum())


def test_batches_hold_every_sequence_once_and_keep_to_the_bound() -> None:
    lengths = np.random.default_rng(0).integers(2, 60, 500)
    members = np.arange(0, 500, 2)
    plan = epoch_plan(lengths, members, 128, 7, 0)
    assert sorted(np.concatenate(plan).tolist()) == members.tolist()
    assert all(len(batch) * lengths[batch].max() <= 128 for batch in plan)
    assert sum(len(batch) * lengths[batch].max() for batch in plan) < 1.2 * lengths[members].sum()
    again = epoch_plan(lengths, members, 128, 7, 0)
    assert all(np.array_equal(one, other) for one, other in zip(plan, again, strict=True))
    other = epoch_plan(lengths, members, 128, 7, 1)
    assert [batch.tolist() for batch in other] != [batch.tolist() for batch in plan]
    (alone,) = epoch_plan(np.asarray([500]), np.asarray([0]), 128, 7, 0)
    assert alone.tolist() == [0]


def test_the_rate_rises_and_ends_at_zero() -> None:
    assert rate(0.0, 1.0, 0.1) == pytest.approx(0.01)
    assert rate(0.05, 1.0, 0.1) == pytest.approx(0.5)
    assert rate(0.1, 1.0, 0.1) == pytest.approx(1.0)
    assert rate(0.55, 1.0, 0.1) == pytest.approx(0.5)
    assert rate(1.0, 1.0, 0.1) == pytest.approx(0.0)
    assert RunLength(steps=4).share(1, 99.0) == 0.25
    assert RunLength(seconds=4.0).share(99, 1.0) == 0.25
    assert RunLength(seconds=4.0).share(99, 5.0) == 1.0
