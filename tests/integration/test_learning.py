"""What a drafter remembers of served replies, over real gRPC: what it may, beyond its own end, and nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.runtime.tokenizer import HuggingFaceTokenizer, load_tokenizer
from paceline.runtime.toy import ToyRunner
from paceline.v1 import common_pb2, target_pb2
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model
from target.wire import Directory, Served, collect, message, speculation, target, until

STEPS = 8
REPLY = 40
NUCLEUS = common_pb2.NucleusVerification(mass=0.5)


def cycles(size: int) -> np.ndarray:
    """Token m * STEPS + i is followed by m * STEPS + (i + 1) % STEPS: replies to different prompts share no token."""
    table = np.zeros((size, size))
    for token in range(size):
        marker, step = divmod(token, STEPS)
        table[token, min(size - 1, marker * STEPS + (step + 1) % STEPS)] = 1.0
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    return save_tokenizer(tiny_model(made, vocab=300), byte_level_tokenizer(300))


@asynccontextmanager
async def serving(folder: Path, file: Path, *, learn: bool = True) -> AsyncIterator[tuple[DrafterServer, Served]]:
    drafter = DrafterServer(DrafterConfig(store_file=str(file), target_model=str(folder), known_rows=0))
    address = await drafter.start()
    tokenizer: HuggingFaceTokenizer = load_tokenizer(folder)
    runner = ToyRunner(cycles(tokenizer.vocab_size))
    settings = {"learn": learn, "draft_deadline_ms": 5000.0}
    try:
        async with target(runner, Directory(address), tokenizer, **settings) as served:  # type: ignore[arg-type]
            await served.drafter_state("ready")
            yield drafter, served

            async def sessions() -> int:
                return drafter.sessions

            await until(sessions, 0)
    finally:
        await drafter.stop(0.0)


def asked(marker: int, temperature: float = 0.0, **wish: object) -> target_pb2.DecodeRequest:
    """A request whose reply is of tokens from `marker` * STEPS to `marker` * STEPS + 7."""
    return message(
        [marker * STEPS],
        REPLY,
        ignore_eos=True,
        sampling=common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=1),
        speculation=speculation(8, wait=common_pb2.WAIT_MODE_TREE, **wish),  # type: ignore[arg-type]
    )


def markers_in(file: Path) -> dict[int, int]:
    with np.load(file, allow_pickle=False) as saved:
        kinds, counts = np.unique(saved["tokens"] // STEPS, return_counts=True)
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))


async def test_a_file_holds_what_may_be_learned_and_the_next_drafter_drafts_from_it(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "store.npz"
    async with serving(folder, file) as (_, served):
        _, cold = await collect(served.stub.Decode(asked(1)))
        for request in (
            asked(2, learn=False),
            asked(3, 1.0, proposal=common_pb2.PROPOSAL_SAMPLED),
            asked(4, nucleus=NUCLEUS),
            asked(5, learn=True),
            asked(6, 1.0, proposal=common_pb2.PROPOSAL_COUPLED),
        ):
            await collect(served.stub.Decode(request))
    assert markers_in(file) == {1: REPLY, 5: REPLY, 6: REPLY}
    before = file.read_bytes()
    async with serving(folder, file) as (drafter, served):

        async def indexed() -> int:
            return drafter.store.tokens

        await until(indexed, 3 * REPLY)  # while nobody asks for anything
        _, warm = await collect(served.stub.Decode(asked(1, learn=False)))
    assert warm.speculation.rounds < cold.speculation.rounds
    assert file.read_bytes() == before, "nothing was learned, nothing is written"


async def test_a_server_that_does_not_learn_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    async with serving(folder, tmp_path / "store.npz", learn=False) as (drafter, served):
        await collect(served.stub.Decode(asked(1)))
        assert drafter.store.tokens == 0
    assert os.listdir(tmp_path) == []
