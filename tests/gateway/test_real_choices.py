"""Several replies per request with real targets and a real drafter: each is what it is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio
import pytest

from gateway.real_stack import VOCAB, Stack, counting, stack, table
from gateway.rig import until, within
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.speculation.sampling import SamplingParams
from paceline.v1 import inference_pb2
from paceline_client import Delta, Nucleus, Overloaded, Reply, Tokens
from support.table_proposer import TableProposer
from target.rig import plain, request

PROMPT = [1, 2, 3, 4, 5]
LENGTH = 48
SELECTIONS = ["draft", "retain", "rerank", "draw_first", "auto"]
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "seed": 3},
    "sampled": {"temperature": 0.9, "seed": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.8, "seed": 2**64 - 1},
}


def alone(choice: int, fields: dict[str, Any], length: int = LENGTH) -> tuple[int, ...]:
    """The reply of that index as an engine of its own gives it, decoded plainly."""
    sampling = SamplingParams(**fields, choice=choice)
    return tuple(plain(ToyRunner(table()), request(PROMPT, length, budget=0, sampling=sampling)))


async def several(running: Stack, n: int, **fields: Any) -> tuple[Reply, ...]:
    return await within(running.served.client.complete_all(Tokens(PROMPT), n=n, **fields))


@pytest.mark.parametrize("name", PARAMS)
async def test_each_reply_is_what_it_is_alone_under_every_rule(name: str) -> None:
    fields = PARAMS[name]
    expected = [alone(choice, fields) for choice in range(4)]
    assert len(set(expected)) == (1 if name == "greedy" else 4)
    async with stack(table(), proposer=TableProposer(table()), draft_deadline_ms=10_000.0) as running:
        for wish in ({"draft": False}, *({"selection": rule, "wait": "tree", "budget": 5} for rule in SELECTIONS)):
            for n in (1, 4):
                replies = await several(running, n, max_tokens=LENGTH, **fields, **wish)
                assert [reply.token_ids for reply in replies] == expected[:n]
                drafts = [reply.finish.speculation.accepted for reply in replies]
                assert all(accepted > 0 for accepted in drafts) == ("draft" not in wish)
        await running.idle()


async def test_without_a_drafter_each_reply_is_what_it_is_alone() -> None:
    async with stack(table()) as running:
        for name, fields in PARAMS.items():
            replies = await several(running, 3, max_tokens=LENGTH, **fields)
            assert [reply.token_ids for reply in replies] == [alone(choice, fields) for choice in range(3)], name


async def test_the_drafter_couples_to_the_noise_of_each_reply() -> None:
    """A drafter with the target's own table guesses every draw, if it knows which noise the target draws with."""
    async with stack(table(), proposer=TableProposer(table()), draft_deadline_ms=10_000.0) as running:
        wish = {"proposal": "coupled", "strength": 1.0, "selection": "draft", "wait": "tree", "budget": 3}
        replies = await several(running, 4, max_tokens=200, temperature=1.0, seed=8, **wish)
        for reply in replies:
            spent = reply.finish.speculation
            assert spent.drafted > 0
            assert spent.accepted >= spent.rounds - 2, "every round with a tree but those at prompt and end"


@pytest.mark.parametrize("proposal", ["ranked", "sampled"])
async def test_limits_of_nucleus_verification_are_each_replys_own(proposal: str) -> None:
    async with stack(table(), proposer=TableProposer(table(seed=9)), draft_deadline_ms=10_000.0) as running:
        wish = {"proposal": proposal, "selection": "draft", "wait": "tree", "nucleus": Nucleus(0.95, max_relaxations=2)}
        replies = await several(running, 3, max_tokens=200, temperature=1.0, seed=8, **wish)
    assert [reply.finish.speculation.relaxed_tokens for reply in replies] == [2, 2, 2]


async def test_the_first_row_and_the_prompt_are_shared() -> None:
    async with stack(table(), max_unread_tokens=4) as running:
        replies = await several(running, 6, max_tokens=400, temperature=1.0, seed=1)
        again = await several(running, 6, max_tokens=400, temperature=1.0, seed=1)
        state = (await within(running.served.client.status())).targets[0]
    assert [reply.finish.speculation.row_cache_hits for reply in replies].count(1) == 5
    assert [reply.finish.speculation.row_cache_hits for reply in again] == [1] * 6
    assert [reply.token_ids for reply in again] == [reply.token_ids for reply in replies]
    assert state.row_cache_hits == 11
    assert state.shared_prompt_tokens == 2 * 5 * len(PROMPT)


async def test_replies_wait_for_sessions_where_the_target_has_few() -> None:
    fields = PARAMS["sampled"]
    async with stack(table(), max_sessions=1, max_queue=3) as running:
        replies = await several(running, 4, max_tokens=LENGTH, **fields)
        assert [reply.token_ids for reply in replies] == [alone(choice, fields) for choice in range(4)]
        with pytest.raises(Overloaded, match="max_sessions 1, max_queue 3"):
            await several(running, 5, max_tokens=4000)
        await running.idle()
        assert (await several(running, 1, max_tokens=LENGTH, **fields))[0].token_ids == replies[0].token_ids


@pytest.mark.parametrize("when", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_all_sessions_and_pages(when: str) -> None:
    async with stack(table(), step_tokens=32, prefill_chunk=8) as running:
        prompt = Tokens([1] * 3000) if when == "prefill" else Tokens(PROMPT)
        engine = running.targets[0].engine
        async with aclosing(running.served.client.generate(prompt, n=5)) as events:
            first = asyncio.ensure_future(anext(events))
            await until(lambda: engine.status().active == 5)
            if when == "decode":
                await within(first)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await running.idle()
        assert running.served.server.servicer.requests == 0
        assert len(await several(running, 3, max_tokens=3)) == 3


async def test_replies_moved_to_another_target_have_the_same_tokens() -> None:
    fields: dict[str, Any] = {"max_tokens": 1000, "temperature": 0.9, "seed": 11}
    async with stack(table(), replicas=2, max_unread_tokens=16) as running:
        whole = await several(running, 3, **fields)
        running.served.directory.leases = [running.leases[0], running.leases[1]]
        running.served.directory.asked = 0
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        stopped: asyncio.Future[None] | None = None
        async for event in running.served.client.generate(Tokens(PROMPT), n=3, **fields):
            if isinstance(event, Delta):
                tokens[event.index] += event.token_ids
                if stopped is None and all(tokens.values()):
                    stopped = asyncio.ensure_future(running.targets[0].stop(0))
        assert stopped is not None
        await within(stopped)
        assert running.targets[1].engine.status().totals.sessions == 3
    assert [tuple(tokens[index]) for index in range(3)] == [reply.token_ids for reply in whole]


class CountingTokenizer(ToyTokenizer):
    """Knows how many tokens the gateway has turned into text."""

    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids) == 2  # a step of the detokenizer: the last token out and the new one
        return super().decode(ids)


async def test_a_slow_reader_holds_all_replies_up_and_loses_nothing() -> None:
    tokenizer = CountingTokenizer([f"<{index}{'.' * 8000}>" for index in range(VOCAB)])
    async with stack(counting(), tokenizer=tokenizer, max_unread_tokens=32) as running:
        asked = inference_pb2.GenerateRequest(tokens=inference_pb2.TokenInput(token_ids=[0]), max_tokens=3000, n=2)
        slow = running.served.stub.Generate(asked)
        tokens: dict[int, list[int]] = {0: [], 1: []}
        first = (await within(slow.read())).delta
        tokens[first.index] += first.token_ids
        seen = -1
        while (now := tokenizer.decoded) != seen:
            seen = now
            await asyncio.sleep(0.3)  # no event tells that nothing happens any more
        assert seen < 4000, "48 MB of text would be on their way to nobody"
        while (response := await within(slow.read())) is not grpc.aio.EOF:
            tokens[response.delta.index] += response.delta.token_ids
        assert tokens == {index: [(1 + number) % VOCAB for number in range(3000)] for index in (0, 1)}
        await running.idle()
