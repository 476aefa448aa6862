"""The model proposer behind the services: acceptance that lasts, its own limits, padded vocabularies, broken rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.model import ModelProposer
from paceline.drafter.server import DrafterServer
from paceline.runtime.drafter_runner import load_drafter_model
from paceline.runtime.models import ModelSpec
from paceline.runtime.runner import ModelRunner
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.v1 import common_pb2
from support.tiny import tiny_model
from target.rig import plain, random_table, request, sampled
from target.wire import Directory, Served, collect, message, target, until
from train.corpora import TOKENS, taught
from train.runs import train

VOCAB = 64
SURE = common_pb2.SamplingParams(temperature=1e-4, top_k=0, top_p=1.0, seed=1)  # one likely path, and drafted as such


@asynccontextmanager
async def services(runner: ModelRunner, drafts: ModelRunner, **config: object) -> AsyncIterator[Served]:
    """Both over gRPC. At the end the drafter's KV must be empty and whole as well."""
    tokenizer = ToyTokenizer.numbered(runner.info.vocab_size)
    proposer = ModelProposer(drafts, tokenizer.fingerprint, max_depth=6, width=4, step_tokens=64, min_path_prob=0.0)
    drafter = DrafterServer(DrafterConfig(), proposer)
    address = await drafter.start()
    try:
        async with target(runner, Directory(address), tokenizer, draft_deadline_ms=10_000.0, **config) as served:
            await served.drafter_state("ready")
            yield served
            await served.idle()

            async def held() -> int:
                return drafter.sessions

            await until(held, 0)
    finally:
        await drafter.stop(5)
    drafts.kv.check_integrity()
    assert drafts.kv.pages_used == 0


async def test_two_hundred_tokens_with_the_targets_own_weights(tmp_path: Path) -> None:
    """Case A4: every round is accepted whole, the last as the first, in a second and shorter session as well."""
    spec = ModelSpec(str(tiny_model(tmp_path)))
    runner, drafts = (load_runner(spec, 512, measure_s=0.0) for _ in range(2))
    async with services(runner, drafts, cost_aware=False) as served:
        for prompt, count in (([3, 1, 4, 1, 5], 204), ([9, 2], 43)):
            expected = plain(runner, request(prompt, count, sampling=sampled(1e-4, 1)))
            tokens, finish = await collect(served.stub.Decode(message(prompt, count, budget=6, sampling=SURE)))
            assert tokens == expected
            assert not finish.speculation.fallbacks
            assert finish.speculation.rounds == 1 + -(-(count - 1) // 7), "six accepted and one drawn, each time"
            assert finish.speculation.accepted == count - finish.speculation.rounds


@pytest.mark.parametrize("length", [46, 47, 48, 49, 62, 63])
@pytest.mark.parametrize("wanted", [1, 100])
async def test_a_drafter_with_a_smaller_limit(length: int, wanted: int) -> None:
    """Case C5: the target takes 64 tokens, the drafter 48; the reply fills the target's limit to the last."""
    table = random_table(VOCAB, seed=2, sharpness=9.0)
    prompt = [token % VOCAB for token in range(length)]
    expected = plain(ToyRunner(table, context_length=64), request(prompt, wanted))
    async with services(ToyRunner(table, context_length=64), ToyRunner(table, context_length=48)) as served:
        for _ in range(2):  # the next request works too
            tokens, finish = await collect(served.stub.Decode(message(prompt, wanted, budget=8)))
            assert tokens == expected
            assert len(tokens) == min(wanted, 64 - length)
            assert finish.reason == common_pb2.FINISH_REASON_LENGTH
            beyond = wanted > 1 and length < 62  # a tree is wanted where more than one token is left
            assert finish.speculation.fallbacks.keys() <= {"context_limit"}
            assert bool(finish.speculation.fallbacks) == beyond


@pytest.mark.parametrize(("target_padded", "drafter_padded"), [(512, 504), (504, 512)])
async def test_vocabularies_padded_to_other_sizes(target_padded: int, drafter_padded: int) -> None:
    """Case H1: padding is never drafted nor emitted, on either side, at temperature 1."""
    table = random_table(500, seed=3, sharpness=12.0)
    params = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=8)
    expected = plain(ToyRunner(table), request([7], 60, sampling=sampled(1.0, 8)))
    runner = ToyRunner(table, vocab_padded=target_padded)
    async with services(runner, ToyRunner(table, vocab_padded=drafter_padded)) as served:
        tokens, finish = await collect(served.stub.Decode(message([7], 60, sampling=params)))
    assert tokens == expected
    assert max(tokens) < 500
    assert finish.speculation.drafted > 0
    assert not finish.speculation.fallbacks


async def test_a_distilled_drafter_with_a_trimmed_head(tmp_path: Path) -> None:
    """Case H1 with a head of 64 of the target's 320 ids, 20 of them padding: plain decoding's tokens, some drafted."""
    given = taught(tmp_path, sequences=48)
    assert train(given, tmp_path / "drafter", vocab=64) is not None
    runner = load_runner(ModelSpec(str(given.target)), 1024, vocab_size=TOKENS, measure_s=0.0)
    spec = ModelSpec(str(tmp_path / "drafter"))
    drafts = load_drafter_model(spec, 1024, str(given.target), Path, measure_s=0.0).runner
    async with services(runner, drafts, cost_aware=False) as served:
        for temperature in (0.0, 1.0):
            params = common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=3)
            accepted = 0
            for prompt in ([7, 3, 250], [299, 12, 64, 1, 100]):
                expected = plain(runner, request(prompt, 60, sampling=sampled(temperature, 3)))
                tokens, finish = await collect(served.stub.Decode(message(prompt, 60, budget=8, sampling=params)))
                assert tokens == expected
                assert max(tokens) < TOKENS
                assert not finish.speculation.fallbacks
                accepted += finish.speculation.accepted
            assert accepted > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
async def test_rows_of_the_drafter_that_are_not_finite_are_no_draft(bad: float) -> None:
    """Case H4: the target's text is its own, and no fault of it."""
    table = random_table(VOCAB, seed=5, sharpness=9.0)
    params = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=4)
    expected = plain(ToyRunner(table), request([7], 80, sampling=sampled(1.0, 4)))
    broken = table.copy()
    broken[expected[10]] = bad
    broken[expected[20], 3] = bad
    assert 2 <= len({*expected[:9]} - {expected[10], expected[20]}), "others are drafted for"
    async with services(ToyRunner(table), ToyRunner(broken)) as served:
        tokens, finish = await collect(served.stub.Decode(message([7], 80, sampling=params)))
    assert tokens == expected
    assert finish.speculation.accepted > 0
    assert not finish.speculation.fallbacks
