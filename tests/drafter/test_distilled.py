"""A drafter that was distilled: its head's columns are the right tokens, and it serves its own target only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from paceline.app_config import AppConfig, parse
from paceline.cli.preflight import check_models
from paceline.drafter.config import DrafterConfig
from paceline.drafter.loading import load_proposer
from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import DraftOptions, Want
from paceline.errors import InvalidField, ModelDamaged, TokenizerMismatch
from paceline.runtime.drafter_runner import load_drafter_model
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.transformers_runner import TransformersRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import ROOT
from paceline.train.checkpoint import Checkpoint
from paceline.train.export import export_run
from paceline.train.target_folder import TargetFolder
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model
from train.corpora import TOKENS, Taught, taught
from train.runs import CHECKPOINT, train

CONTEXT = [7, 3, 250, 9, 41, 7]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """The target's 320 embeddings are padding from 300 on: case H1."""
    return taught(tmp_path_factory.mktemp("given"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def drafter(given: Taught, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drafter")
    assert train(given, out) is not None
    return out


def load(folder: Path, target: Path | None, **changes: str) -> TransformersRunner:
    spec = ModelSpec(str(folder), **changes)
    return load_drafter_model(spec, 256, None if target is None else str(target), Path, measure_s=0.0).runner


def row(runner: TransformersRunner, context: list[int] = CONTEXT) -> torch.Tensor:
    """[columns] float32."""
    sequence = runner.kv.open()
    rows = runner.execute(PassPlan((Segment.chain(sequence, context, last_row=True),)))
    runner.kv.release(sequence)
    return rows.logits(0, len(context) - 1)


@torch.inference_mode()
def expected_row(given: Taught, drafter: Path) -> torch.Tensor:
    """[columns]: the target's first and last layers, by hand, with the trained tensors in their places."""
    model = AutoModelForCausalLM.from_pretrained(given.target)
    model.model.layers = model.model.layers[:4]
    tensors = Checkpoint.read(drafter / CHECKPOINT).tensors
    model.model.load_state_dict(
        {name.removeprefix("model."): each for name, each in tensors.items() if name.startswith("model.")}, strict=False
    )
    hidden = model.model(torch.tensor([CONTEXT])).last_hidden_state[0, -1]
    return tensors["lm_head.weight"] @ hidden


def test_the_packed_pass_computes_what_was_trained(given: Taught, drafter: Path) -> None:
    runner = load(drafter, given.target)
    torch.testing.assert_close(row(runner), expected_row(given, drafter), rtol=1e-4, atol=1e-4)
    assert (runner.info.vocab_padded, runner.info.vocab_size) == (320, TOKENS)
    assert load(drafter, None).info.token_ids is not None, "the folder names its target"


@pytest.mark.parametrize("vocab_size", [TOKENS, 60])
def test_proposals_are_the_heads_tokens(given: Taught, drafter: Path, vocab_size: int) -> None:
    """Columns become the target's ids, and ids that the request does not know are left out."""
    runner = load(drafter, given.target)
    made = ModelProposer(runner, "same", max_depth=2, width=4, step_tokens=64, min_path_prob=0.0)
    options = DraftOptions(Proposal.RANKED, 1.0, SamplingParams(), frozenset(), vocab_size, True)
    context = [token % vocab_size for token in CONTEXT]
    made.open(1, np.asarray(context, np.int32), 3, options)
    growth = made.propose([Want(1, 6)])[0]
    while growth is None or growth.growing:
        growth = made.propose([Want(1, 6)])[0]
    ids = np.load(drafter / "token_ids.npy")
    kept = ids[ids < vocab_size]
    probs = torch.softmax(row(runner, context)[: len(kept)], 0)
    best = kept[probs.argsort(descending=True).numpy()]
    tree = growth.tree
    children = tree.children(ROOT)
    assert len(tree) == 6
    assert tree.tokens[children].tolist() == best[: len(children)].tolist()
    assert tree.log_probs is not None
    np.testing.assert_allclose(
        np.exp(tree.log_probs[children]), np.sort(probs.numpy())[::-1][: len(children)], rtol=1e-3
    )


def test_a_quarter_of_the_bytes_give_close_logits(given: Taught, drafter: Path, tmp_path: Path) -> None:
    target = TargetFolder.open(str(given.target), given.target)
    for weights in ("int8", "bfloat16"):
        export_run(drafter / "training", tmp_path / weights, weights, target)
        whole, small = row(load(drafter, given.target)), row(load(tmp_path / weights, given.target))
        assert (whole - small).std() < 0.12 * whole.std(), weights  # tiny random layers amplify rounding
        assert (whole - small).std() > 0, "it is another format"
    held = load_file(tmp_path / "int8" / "model.safetensors")
    assert {each.dtype for each in held.values() if each.ndim == 2} == {torch.int8}
    assert {path.name for path in (tmp_path / "int8").iterdir()} == {
        "config.json", "drafter.json", "model.safetensors", "token_ids.npy",
    }  # fmt: skip


def test_bfloat16_passes(given: Taught, drafter: Path) -> None:
    runner = load(drafter, given.target, dtype="bfloat16")
    assert runner.info.dtype == "bfloat16"
    whole = row(load(drafter, given.target))
    assert (row(runner) - whole).std() < 0.1 * whole.std()


def test_a_whole_vocabulary_is_a_model_of_transformers_too(given: Taught, tmp_path: Path) -> None:
    """Case H6: the target's head is tied to its embedding, the student's is its own and is stored."""
    train(given, tmp_path, vocab=None, epochs=1.0)
    assert not (tmp_path / "token_ids.npy").exists()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([CONTEXT])).logits[0, -1]
    torch.testing.assert_close(row(load(tmp_path, given.target)), expected, rtol=1e-4, atol=1e-4)
    target = TargetFolder.open(str(given.target), given.target)
    with pytest.raises(InvalidField, match=r"--weights.*int8"):
        export_run(tmp_path / "training", tmp_path / "small", "int8", target)


def test_another_target_is_refused_by_name(given: Taught, drafter: Path, tmp_path: Path) -> None:
    retrained = save_tokenizer(
        tiny_model(tmp_path / "retrained", vocab=320, num_hidden_layers=5, seed=1), byte_level_tokenizer(TOKENS)
    )
    wider = save_tokenizer(tiny_model(tmp_path / "wider", vocab=328), byte_level_tokenizer(TOKENS))
    with pytest.raises(InvalidField, match=r"retrained.*other values"):
        load(drafter, retrained)
    with pytest.raises(InvalidField, match=r"wider.*328 x 32.*320 x 32"):
        load(drafter, wider)


def test_another_tokenizer_is_refused_by_its_first_difference(given: Taught, drafter: Path, tmp_path: Path) -> None:
    other = save_tokenizer(tiny_model(tmp_path / "other", vocab=320), byte_level_tokenizer(290))
    with pytest.raises(TokenizerMismatch, match=r"other.*300 tokens, the other 29\d; id 29\d"):
        load(drafter, other)
    alone = shutil.copytree(drafter, tmp_path / "alone")
    facts = json.loads((alone / "drafter.json").read_text())
    (alone / "drafter.json").write_text(json.dumps({**facts, "target": str(other)}))
    with pytest.raises(TokenizerMismatch, match="fingerprint"):
        load(alone, other)


@pytest.mark.parametrize("missing", ["lm_head.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_a_tensor_that_is_missing_is_named(given: Taught, drafter: Path, tmp_path: Path, missing: str) -> None:
    """Case H6: a head left at random would make acceptance zero, and nobody would know why."""
    copy = shutil.copytree(drafter, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights[missing]
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(ModelDamaged, match=missing):
        load(copy, given.target)


@pytest.mark.parametrize("name", ["drafter.json", "model.safetensors", "token_ids.npy", "config.json"])
def test_a_damaged_file_is_named(given: Taught, drafter: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(drafter, tmp_path / "copy")
    (copy / name).write_bytes((copy / name).read_bytes()[:20])
    with pytest.raises(ModelDamaged, match=name):
        load(copy, given.target)


def test_ids_that_do_not_fit_are_refused(given: Taught, drafter: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(drafter, tmp_path / "copy")
    ids = np.load(copy / "token_ids.npy")
    for wrong in (ids[:-1], ids[::-1], ids.astype(np.int64), ids + 320):
        np.save(copy / "token_ids.npy", wrong)
        with pytest.raises(ModelDamaged, match="token_ids"):
            load(copy, given.target)


def test_a_replicas_settings_load_it(given: Taught, drafter: Path) -> None:
    config = DrafterConfig(
        proposer="model", model=str(drafter), target_model=str(given.target), device="cpu", kv_tokens=256
    )
    proposer = load_proposer(config)
    target = TargetFolder.open(str(given.target), given.target)
    assert (proposer.name, proposer.context_length) == ("model", 256)
    assert proposer.tokenizer_fingerprint == target.tokenizer.fingerprint


def test_a_server_checks_it_before_it_starts(given: Taught, drafter: Path, tmp_path: Path) -> None:
    def served(target: Path) -> AppConfig:
        settings = {"proposer": "model", "model": str(drafter)}
        return parse({"target": {"settings": {"model": str(target)}}, "drafter": {"settings": settings}})

    check_models(served(given.target))
    other = save_tokenizer(tiny_model(tmp_path / "other", vocab=320), byte_level_tokenizer(TOKENS))
    with pytest.raises(InvalidField, match=r"drafter\d.*other values"):
        check_models(served(other))
    another = save_tokenizer(tiny_model(tmp_path / "another", vocab=320), byte_level_tokenizer(290))
    with pytest.raises(TokenizerMismatch, match=r"another.*id 29\d"):
        check_models(served(another))
