"""The fused proposer behind the services: the tokens of plain decoding, whatever the rule, and what status tells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.fused import FusedProposer
from paceline.drafter.looks import MeasuredTimes, Times
from paceline.drafter.server import DrafterServer
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan
from paceline.runtime.runner import ModelRunner
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.v1 import common_pb2, inference_pb2, target_pb2
from support.times import Given
from support.tiny import tiny_model
from target.rig import plain, random_table, request, sampled
from target.wire import Directory, Served, collect, message, speculation, target, until

VOCAB = 64
TABLE = random_table(VOCAB, seed=5, sharpness=9.0)
HALF = 0.5 * TABLE + 0.5 * random_table(VOCAB, seed=6, sharpness=9.0)  # of a model that is often right
RULES = [
    common_pb2.SELECTION_RULE_DRAFT,
    common_pb2.SELECTION_RULE_RETAIN,
    common_pb2.SELECTION_RULE_RERANK,
    common_pb2.SELECTION_RULE_DRAW_FIRST,
    common_pb2.SELECTION_RULE_AUTO,
]


@asynccontextmanager
async def services(
    runner: ModelRunner, drafts: ModelRunner, times: Times | None = None, **config: object
) -> AsyncIterator[tuple[Served, FusedProposer]]:
    """Both over gRPC; every look is made unless times are given. At the end the drafter's members must be empty."""
    tokenizer = ToyTokenizer.numbered(runner.info.vocab_size)
    proposer = FusedProposer(
        SuffixProposer(TextStore(MB), 6, 0.01),
        drafts,
        tokenizer.fingerprint,
        max_depth=6,
        width=4,
        step_tokens=64,
        min_path_prob=0.01,
        times=times or Given(),
    )
    drafter = DrafterServer(DrafterConfig(), proposer)
    address = await drafter.start()
    try:
        async with target(runner, Directory(address), tokenizer, draft_deadline_ms=10_000.0, **config) as served:
            await served.drafter_state("ready")
            yield served, proposer
            await served.idle()

            async def held() -> int:
                return drafter.sessions

            await until(held, 0)
            assert [each.sessions for each in proposer.members()] == [0, 0]
    finally:
        await drafter.stop(5)
    drafts.kv.check_integrity()
    assert drafts.kv.pages_used == 0


@pytest.mark.parametrize("rule", RULES)
async def test_the_tokens_of_plain_decoding_under_every_rule(rule: common_pb2.SelectionRule) -> None:
    prompt, count = [3, 1, 4, 1, 5], 80
    async with services(ToyRunner(TABLE), ToyRunner(HALF)) as (served, proposer):
        for temperature in (0.0, 0.7, 1.0):
            params = sampled(temperature, 11)
            expected = plain(ToyRunner(TABLE), request(prompt, count, sampling=params))
            sampling = common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=11)
            kind = common_pb2.PROPOSAL_COUPLED if temperature else common_pb2.PROPOSAL_RANKED
            wish = speculation(6, proposal=kind, selection=rule)
            tokens, finish = await collect(
                served.stub.Decode(message(prompt, count, sampling=sampling, speculation=wish))
            )
            assert tokens == expected
            assert not finish.speculation.fallbacks
            assert finish.speculation.accepted > 0
        assert all(member.trust for member in proposer.members()), "both were asked, and judged"


async def test_sampled_proposals_are_served_by_the_model() -> None:
    """The tokens depend on the drafter, so that a target equal to its drafter is what can be checked: it accepts."""
    async with services(ToyRunner(TABLE), ToyRunner(TABLE)) as (served, proposer):
        sampling = common_pb2.SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=3)
        wish = speculation(6, proposal=common_pb2.PROPOSAL_SAMPLED)
        _, finish = await collect(served.stub.Decode(message([1, 2], 60, sampling=sampling, speculation=wish)))
        assert not finish.speculation.fallbacks
        assert finish.speculation.accepted > 20
        assert not any(member.trust for member in proposer.members())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_transformers_models(tmp_path: Path, temperature: float) -> None:
    """A target and another model as its drafter, of the same vocabulary; several sessions side by side."""
    runner = load_runner(ModelSpec(str(tiny_model(tmp_path / "target"))), 1024, measure_s=0.0)
    drafts = load_runner(ModelSpec(str(tiny_model(tmp_path / "drafter", seed=1))), 1024, measure_s=0.0)
    prompts = [[3, 1, 4, 1, 5], [9, 2], list(range(30))]
    kind = common_pb2.PROPOSAL_COUPLED if temperature else common_pb2.PROPOSAL_RANKED
    expected = [
        plain(runner, request(prompt, 60, sampling=sampled(temperature, number)))
        for number, prompt in enumerate(prompts)
    ]
    async with services(runner, drafts, MeasuredTimes(drafts.costs)) as (served, _):
        calls = [
            served.stub.Decode(
                message(
                    prompt,
                    60,
                    sampling=common_pb2.SamplingParams(temperature=temperature, top_k=0, top_p=1.0, seed=number),
                    speculation=speculation(6, proposal=kind),
                )
            )
            for number, prompt in enumerate(prompts)
        ]
        for call, tokens in zip(calls, expected, strict=True):
            assert (await collect(call))[0] == tokens


async def test_beyond_the_models_context_the_reply_goes_on_with_drafts() -> None:
    """Case C5: the target takes 200 tokens, the drafter's model 48; the text goes in circles."""
    circle = np.roll(np.eye(VOCAB), 1, axis=1) * 0.9 + 0.1 / VOCAB
    circle[6] = np.eye(VOCAB)[1] * 0.9 + 0.1 / VOCAB
    expected = plain(ToyRunner(circle, context_length=200), request([1, 2, 3], 150))
    async with services(ToyRunner(circle, context_length=200), ToyRunner(circle, context_length=48)) as (served, made):
        tokens, finish = await collect(served.stub.Decode(message([1, 2, 3], 150, budget=8)))
        assert tokens == expected
        assert not finish.speculation.fallbacks
        assert finish.speculation.rounds < 50
        assert made.members()[1].left == {"context limit": 1}


async def test_a_model_that_fails_costs_its_drafts_and_no_more() -> None:
    def before(plan: PassPlan) -> None:
        raise RuntimeError("no luck")

    expected = plain(ToyRunner(TABLE), request([1, 2, 3], 100))
    async with services(ToyRunner(TABLE), ToyRunner(TABLE, before_execute=before)) as (served, made):
        tokens, finish = await collect(served.stub.Decode(message([1, 2, 3], 100, budget=8)))
        assert tokens == expected
        assert not finish.speculation.fallbacks
        assert made.members()[1].left == {"failed": 1}
        (drafter,) = (await served.stub.GetTargetStatus(target_pb2.GetTargetStatusRequest())).drafters
        assert drafter.proposer == "fused"
        assert [each.proposer for each in drafter.members] == ["suffix", "model"]
        assert dict(drafter.members[1].left) == {"failed": 1}
        (first, *_) = drafter.members[0].trust
        assert isinstance(first, inference_pb2.MemberTrust)
        assert (first.warmth, first.depth) == ("greedy", 1)
        assert first.contexts > 0
        assert 0 <= first.right <= 1
