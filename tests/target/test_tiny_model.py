"""The engine over a transformers model: KV of accepted paths, batches of different kinds, float32."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.runtime.models import ModelSpec
from paceline.runtime.transformers_runner import TransformersRunner, load_runner
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.target.request import SessionRequest
from support.tiny import tiny_model
from target import drafters
from target.rig import PATIENCE_S, plain, request, running, sampled

VOCAB = 64
COUNT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"), vocab=VOCAB)


@pytest.fixture
def runner(folder: Path) -> Iterator[TransformersRunner]:
    return load_runner(ModelSpec(str(folder), device="cpu", dtype="float32"), kv_tokens=1024, measure_s=0.0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_accepted_paths_with_gaps(runner: TransformersRunner, order: tuple[int, ...]) -> None:
    """Three children a node, four levels, the right one at any place among its siblings."""
    prompt = [1, 2, 3]
    wanted = request(prompt, COUNT, budget=64)
    known = [*prompt, *plain(runner, wanted)]

    def propose(context: list[int], budget: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        level = [-1]
        for depth, right in enumerate(known[len(context) : len(context) + 3]):
            siblings = [right, (right + 1) % VOCAB, (right + 2) % VOCAB]
            first = len(tokens)
            for parent in level:
                tokens += [siblings[order[(each + depth) % 3]] for each in range(3)]
                parents += [parent] * 3
            level = list(range(first, len(tokens)))
        return DraftTree.build(tokens, parents)

    with running(runner, propose) as rig:
        tokens, finish = rig.decode(wanted)
    assert tokens == known[len(prompt) :]
    assert finish.stats.rounds == 1 + -(-(COUNT - 1) // 4)
    paths = {record.accepted for record in rig.records}
    assert any(path and path != tuple(range(len(path))) for path in paths), "no path had gaps"


def test_company_changes_nothing(runner: TransformersRunner) -> None:
    """Prompts of 3, 5, 17 and 64 tokens, greedy and sampled; row k accepts k tokens a round; prompts come in chunks."""
    generator = np.random.default_rng(2)
    prompts = [[k, *generator.integers(0, VOCAB, length - 1).tolist()] for k, length in enumerate((3, 5, 17, 64))]
    params = [SamplingParams(), sampled(0.9, 5), SamplingParams(), sampled(0.9, 6, top_p=0.9)]
    wanted: list[SessionRequest] = [request(prompts[k], COUNT, sampling=params[k]) for k in range(4)]
    alone = [plain(runner, each) for each in wanted]
    proposers = [drafters.accepting(prompts[k], alone[k], VOCAB, accepted=k) for k in range(4)]
    rounds = itertools.count()

    def propose(context: list[int], budget: int) -> DraftTree:
        if context[0] == 2 and next(rounds) % 3 == 0:
            return DraftTree.empty()
        return proposers[context[0]](context, budget)

    with running(runner, propose, prefill_chunk=16, step_tokens=48) as rig:
        sinks = [rig.submit(each)[1] for each in wanted]
        for sink in sinks:
            sink.wait()
    assert [sink.all_tokens for sink in sinks] == alone


@pytest.mark.parametrize("length", [2, 16, 17, 40])
@pytest.mark.parametrize("row_cache_mb", [0.0, 32.0])
def test_replies_to_one_prompt_are_what_each_is_alone(
    runner: TransformersRunner, length: int, row_cache_mb: float
) -> None:
    """KV that is copied from the one that reads is what each would have computed."""
    prompt = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
    params = [replace(sampled(0.9, 5), choice=choice) for choice in range(4)]
    wanted: list[SessionRequest] = [request(prompt, COUNT, sampling=each) for each in params]
    alone = [plain(runner, each) for each in wanted]
    assert len({tuple(tokens) for tokens in alone}) == 4
    known = {(*prompt, *tokens[:4]): tokens for tokens in alone}
    submitted = threading.Event()

    def propose(context: list[int], budget: int) -> DraftTree:
        assert submitted.wait(PATIENCE_S), "the first to be drafted for has read the prompt, and stays"
        reply = known.get(tuple(context[: length + 4]), alone[0])
        ahead = reply[len(context) - length :][: 1 + len(context) % 3]
        return DraftTree.build(ahead, list(range(-1, len(ahead) - 1)))

    with running(runner, propose, prefill_chunk=16, step_tokens=48, row_cache_mb=row_cache_mb) as rig:
        sinks = [rig.submit(each)[1] for each in wanted]
        submitted.set()
        hits = [sink.wait().stats.row_hits for sink in sinks]
        shared = rig.engine.status().totals.shared_prompt_tokens
    assert [sink.all_tokens for sink in sinks] == alone
    assert sum(hits) == (3 if row_cache_mb else 0)
    assert shared == 3 * (length if row_cache_mb else length - 1)


def test_prompts_around_the_context_limit(folder: Path) -> None:
    runner = load_runner(ModelSpec(str(folder), device="cpu"), kv_tokens=1024, measure_s=0.0)
    for length in (46, 62, 63):
        prompt = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
        wanted = request(prompt, 100, budget=15)
        expected = plain(runner, wanted, context_length=64)
        assert len(expected) == 64 - length
        with running(runner, drafters.bushy(prompt, expected, VOCAB, 3), context_length=64) as rig:
            assert rig.decode(wanted)[0] == expected
