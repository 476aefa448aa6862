"""The gateway in front of the real target, on a table model: what a client sees of both together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from gateway.real_stack import VOCAB, counting, stack, table
from gateway.rig import until, within
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.target.request import SessionRequest
from paceline.target.session import Sink
from paceline.v1 import inference_pb2
from paceline_client import DeadlineExceeded, Delta, Reply, Tokens


async def test_a_sampled_reply_moved_to_another_target_has_the_same_tokens() -> None:
    """The seed and the position address the noise, so a resumed reply continues as if nothing had happened."""
    fields: dict[str, Any] = {"max_tokens": 1500, "temperature": 0.9, "top_p": 0.95, "seed": 11}
    async with stack(table(), replicas=2, max_unread_tokens=16) as running:
        whole = await within(running.served.client.complete(Tokens([1, 2]), **fields))
        running.served.directory.leases = [running.leases[0], running.leases[1]]
        running.served.directory.asked = 0
        tokens: list[int] = []
        text: list[str] = []
        stopped: asyncio.Future[None] | None = None
        async for event in running.served.client.generate(Tokens([1, 2]), **fields):
            if isinstance(event, Delta):
                tokens += event.token_ids
                text.append(event.text)
                if stopped is None:
                    stopped = asyncio.ensure_future(running.targets[0].stop(0))
        assert stopped is not None
        await within(stopped)
        assert running.targets[1].engine.status().totals.emitted > 0, "the second target took part"
    assert tokens == list(whole.token_ids)
    assert "".join(text) == whole.text
    assert len(tokens) == 1500


@pytest.mark.parametrize("when", ["prefill", "decode", "queued"])
async def test_a_client_that_leaves_frees_session_and_pages(when: str) -> None:
    """E1: while the prompt is read, while tokens come, while it waits for a slot."""
    async with stack(table(), max_sessions=1, step_tokens=8, prefill_chunk=8) as running:
        client = running.served.client
        async with aclosing(client.generate(Tokens([1] * (3000 if when == "prefill" else 3)))) as first:
            if when == "prefill":
                started = asyncio.ensure_future(anext(first))
                await until(lambda: running.targets[0].engine.status().active == 1)
                started.cancel()
                await asyncio.gather(started, return_exceptions=True)
            else:
                await within(anext(first))
            if when == "queued":
                async with aclosing(client.generate(Tokens([2]))) as second:
                    waiting = asyncio.ensure_future(anext(second))
                    await until(lambda: running.targets[0].engine.status().queued == 1)
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
                await until(lambda: running.targets[0].engine.status().queued == 0)
        await running.idle()
        assert (await within(client.complete(Tokens([1]), max_tokens=3))).finish.usage.completion_tokens == 3


async def test_a_deadline_stops_the_work() -> None:
    async with stack(table(), context_length=60000, max_unread_tokens=64) as running:
        with pytest.raises(DeadlineExceeded):
            await within(running.served.client.complete(Tokens([1]), timeout_s=0.3))
        await running.idle()


async def test_a_wait_for_trees_is_the_requests_own_only_where_it_names_one() -> None:
    """Others wait as long as the replica does, and no longer than the sessions beside them."""
    async with stack(table(), draft_deadline_ms=40) as running:
        engine = running.targets[0].engine
        wishes: list[tuple[bool, float | None]] = []
        submit = engine.submit

        def spy(request: SessionRequest, sink: Sink) -> int:
            wishes.append((request.wish.own_deadline, request.wish.deadline_s))
            return submit(request, sink)

        engine.submit = spy  # type: ignore[method-assign]
        named: list[dict[str, Any]] = [{}, {"draft_deadline_ms": 40}, {"wait": "tree"}]
        for fields in named:
            await within(running.served.client.complete(Tokens([1]), max_tokens=2, **fields))
    assert wishes == [(False, None), (True, 0.04), (True, None)]


class CountingTokenizer(ToyTokenizer):
    """Knows how many tokens the gateway has turned into text."""

    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids) == 2  # a step of the detokenizer: the last token out and the new one
        return super().decode(ids)


async def test_a_slow_reader_is_waited_for_and_loses_nothing() -> None:
    """E7: what nobody reads stops the session, on three hops; a fast reader beside it is not held up."""
    tokenizer = CountingTokenizer([f"<{index}{'.' * 8000}>" for index in range(VOCAB)])
    async with stack(counting(), tokenizer=tokenizer, max_unread_tokens=32) as running:
        slow = running.served.stub.Generate(
            inference_pb2.GenerateRequest(tokens=inference_pb2.TokenInput(token_ids=[0]), max_tokens=4000)
        )
        tokens = list((await within(slow.read())).delta.token_ids)
        fast = await within(running.served.client.complete(Tokens([5]), max_tokens=300))
        assert [token % VOCAB for token in fast.token_ids] == [(6 + index) % VOCAB for index in range(300)]

        seen = -1
        while (now := tokenizer.decoded) != seen:
            seen = now
            await asyncio.sleep(0.3)  # no event tells that nothing happens any more
        assert seen - 300 < 3000, "32 MB of text would be on their way to nobody"

        while True:
            response = await within(slow.read())
            if response.WhichOneof("event") == "finish":
                break
            tokens += response.delta.token_ids
        assert tokens == [(1 + index) % VOCAB for index in range(4000)]
        await running.idle()


@pytest.mark.parametrize("last", [5, 9])
async def test_every_end_token_ends_the_reply_and_shows_no_text(last: int) -> None:
    eos = frozenset({5, 9})
    async with stack(counting(), eos=eos) as running:
        reply = await within(running.served.client.complete(Tokens([last - 3])))
        assert reply.token_ids == (last - 2, last - 1, last)
        assert reply.text == f"<{last - 2}><{last - 1}>"
        assert (reply.finish.reason, reply.finish.usage.completion_tokens) == ("stop", 3)
        on = await within(running.served.client.complete(Tokens([last - 3]), ignore_eos=True, max_tokens=6))
        assert (len(on.token_ids), on.finish.reason) == (6, "length")


async def test_a_stop_string_ends_target_and_text_alike() -> None:
    async with stack(counting()) as running:
        reply = await within(running.served.client.complete(Tokens([1]), stop=["5><6"], max_tokens=50))
        assert reply.text == "<2><3><4><"
        assert reply.token_ids == (2, 3, 4, 5, 6)
        assert (reply.finish.reason, reply.finish.stop_match) == ("stop", "5><6")
        await running.idle()
        assert running.targets[0].engine.status().totals.emitted == 5, "the engine stopped in that round"


async def test_the_context_is_filled_exactly() -> None:
    async with stack(counting(), context_length=64) as running:
        for prompt in (1, 46, 63):
            reply = await within(running.served.client.complete(Tokens([1] * prompt)))
            assert (len(reply.token_ids), reply.finish.reason) == (64 - prompt, "length")


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 1e-6}, True),
        ({"temperature": 1e-4}, True),
        ({"temperature": 0.8, "top_p": 0.0}, True),
        ({"temperature": 0.8, "top_p": 1e-8}, True),
        ({"temperature": 0.8, "top_k": 1}, True),
        ({"temperature": 1e6}, False),
    ],
)
async def test_extreme_sampling_values(fields: dict[str, Any], greedy: bool) -> None:
    async with stack(table()) as running:

        async def complete(**more: Any) -> Reply:
            return await within(running.served.client.complete(Tokens([1]), max_tokens=400, seed=5, **more))

        plain = await complete(temperature=0.0)
        extreme = await complete(**fields)
        assert (extreme.token_ids == plain.token_ids) == greedy
        if not greedy:
            # Near uniform: 400 draws miss one of 16 tokens with odds of 16 (15/16)^400 = 1e-10.
            assert set(extreme.token_ids) == set(range(VOCAB))
        assert (await complete(temperature=0.0)).token_ids == plain.token_ids


async def test_a_seed_repeats_a_reply_and_another_one_does_not() -> None:
    async with stack(table()) as running:

        async def tokens(seed: int | None) -> tuple[tuple[int, ...], int]:
            reply = await within(running.served.client.complete(Tokens([1]), max_tokens=64, temperature=1.0, seed=seed))
            return reply.token_ids, reply.finish.seed

        unseeded, drawn = await tokens(None)
        assert await tokens(drawn) == (unseeded, drawn)
        assert (await tokens(drawn ^ 1))[0] != unseeded


async def test_status_through_the_whole_stack() -> None:
    async with stack(counting()) as running:
        await within(running.served.client.complete(Tokens([1]), max_tokens=5))
        await running.idle()
        status = await within(running.served.client.status())
        info = await within(running.served.client.get_model_info())
    assert [target.emitted for target in status.targets] == [5]
    assert status.targets[0].drafter_state == "absent"
    assert (info.vocab_size, info.proposer) == (VOCAB, "")
