"""What a drafter checks before it listens: its model, and that it has the target's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from paceline.drafter.config import DrafterConfig
from paceline.drafter.loading import load_proposer, load_store
from paceline.drafter.proposer import DraftOptions, Want
from paceline.drafter.server import DrafterServer
from paceline.errors import ModelDamaged, ModelNotFound, PacelineError, TokenizerMismatch, Unavailable
from paceline.rpc.arrays import bytes_to_ints, ints_to_bytes
from paceline.rpc.channels import open_channel
from paceline.runtime.tokenizer import load_tokenizer
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from paceline.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

VOCAB = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    return save_tokenizer(tiny_model(made, vocab=VOCAB), byte_level_tokenizer(300))


def config(folder: Path, **changes: object) -> DrafterConfig:
    return DrafterConfig(proposer="model", model=str(folder), device="cpu", kv_tokens=512, **changes)  # type: ignore[arg-type]


async def refused_start(settings: DrafterConfig) -> PacelineError:
    """The error of a start that must fail, with nothing left that listens or computes."""
    server = DrafterServer(settings)
    with pytest.raises(PacelineError) as caught:
        await server.start()
    with pytest.raises(Unavailable, match="not started"):
        server.healthy()
    assert (server.sessions, server.streams) == (0, 0)
    await server.stop(0)
    return caught.value


async def test_a_model_is_served_with_its_tokenizers_fingerprint(folder: Path) -> None:
    server = DrafterServer(config(folder, target_model=str(folder)))
    address = await server.start()
    try:
        async with open_channel(address) as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            answer = await stub.GetDrafterStatus(draft_pb2.GetDrafterStatusRequest(), timeout=30)
            fingerprint = load_tokenizer(folder).fingerprint
            assert (answer.status.proposer, answer.context_length) == ("model", 256)
            assert answer.tokenizer_fingerprint == fingerprint
            call = stub.Draft()
            for session, theirs in ((1, fingerprint), (2, "another")):
                opening = draft_pb2.OpenSession(
                    context_tokens=ints_to_bytes([5, 6, 7]),
                    prompt_length=3,
                    tokenizer_fingerprint=theirs,
                    vocab_size=300,
                    options=draft_pb2.DraftOptions(
                        proposal=common_pb2.PROPOSAL_RANKED,
                        sampling=common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0),
                    ),
                    budget=4,
                )
                update = draft_pb2.SessionUpdate(session=session, epoch=1, open=opening)
                await call.write(draft_pb2.DraftRequest(updates=[update]))
                (reply,) = (await call.read()).replies
                while reply.tree.growing:
                    (reply,) = (await call.read()).replies
                if session == 1:
                    tokens = bytes_to_ints(reply.tree.tokens)
                    assert len(tokens)
                    assert tokens.max() < 300, "the model has 512 rows, the tokenizer 300 tokens"
                else:
                    assert reply.error.code == draft_pb2.SESSION_ERROR_CODE_TOKENIZER_MISMATCH
            call.cancel()
    finally:
        await server.stop(0)


async def test_another_tokenizer_is_refused_at_start_by_its_first_difference(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, byte_level_tokenizer(290))
    error = await refused_start(config(folder, target_model=str(tmp_path)))
    assert isinstance(error, TokenizerMismatch)
    assert str(folder) in str(error)
    assert "tokens" in str(error)


async def test_a_model_without_its_head_is_refused_by_the_tensors_name(folder: Path, tmp_path: Path) -> None:
    """Case H6 as a drafter: acceptance would be zero, and nobody would know why."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    error = await refused_start(config(tmp_path))
    assert isinstance(error, ModelDamaged)
    assert "lm_head" in str(error)


async def test_a_model_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    error = await refused_start(config(tmp_path / "nowhere"))
    assert isinstance(error, ModelNotFound)
    assert "nowhere" in str(error)


def test_the_fused_proposer_has_the_replicas_store_and_the_models_tokenizer(folder: Path, tmp_path: Path) -> None:
    settings = DrafterConfig(
        proposer="fused",
        model=str(folder),
        target_model=str(folder),
        device="cpu",
        kv_tokens=512,
        store_file=str(tmp_path / "texts.npz"),
    )
    kept = load_store(settings)
    made = load_proposer(settings, kept)
    assert (made.name, made.tokenizer_fingerprint) == ("fused", load_tokenizer(folder).fingerprint)
    assert made.context_length == 0, "where the model's ends, the text goes on"
    options = DraftOptions(Proposal.RANKED, 1.0, SamplingParams(), frozenset(), 300, learn=True)
    made.open(1, np.asarray([5, 6, 7], np.int32), 2, options)
    while (growth := made.propose([Want(1, 4)])[0]) is None or growth.growing:
        continue
    assert len(growth.tree) == 4
    made.close(1)
    while kept.store.learn_part():
        continue
    assert kept.store.tokens == 1


def test_the_suffix_proposer_needs_no_model() -> None:
    proposer = load_proposer(DrafterConfig())
    assert (proposer.name, proposer.tokenizer_fingerprint, proposer.context_length) == ("suffix", "", 0)
