"""Several replies per request: the field, the stream, admission, and how they end (n above 1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import grpc.aio
import pytest

from gateway.rig import LENGTH, STOP, Script, Step, finish, gateway, says, until, within
from paceline.rpc.arrays import bytes_to_ints
from paceline.v1 import inference_pb2, target_pb2
from paceline_client import DeadlineExceeded, Delta, Finish, InvalidRequest, Overloaded, Reply, ServerFault, Unavailable

TEXTS = ["alpha", "be", "gamma ray", "d"]


def each(*scripts: Script) -> Script:
    """Choice c follows the script of that number, the last one for all beyond."""

    def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        return scripts[min(request.choice, len(scripts) - 1)](request)

    return script


def speaks(*texts: str, chunk: int = 2) -> Script:
    """Choice c says its text."""
    return each(*(says(list(text.encode()), chunk) for text in texts))


async def forever(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
    """One token, then nothing."""
    yield [97]
    await asyncio.Event().wait()


def fails(code: grpc.StatusCode, gate: asyncio.Event | None = None) -> Script:
    """A status in place of a reply, once the gate is open."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        if gate is not None:
            await gate.wait()
        yield code

    return script


def texts(replies: tuple[Reply, ...]) -> list[str]:
    return [reply.text for reply in replies]


async def test_replies_come_in_one_stream_each_with_its_index_and_a_finish() -> None:
    async with gateway(speaks(*TEXTS)) as served:
        events = [event async for event in served.client.generate("x", n=4, seed=5, temperature=1.0)]
        asked = served.targets[0].requests
    for index, text in enumerate(TEXTS):
        own = [event for event in events if event.index == index]
        assert "".join(event.text for event in own if isinstance(event, Delta)) == text
        assert [type(event) for event in own][-1] is Finish
        assert sum(isinstance(event, Finish) for event in own) == 1
        end = own[-1]
        assert isinstance(end, Finish)
        assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.seed) == (1, len(text), 5)
    assert sorted(request.choice for request in asked) == [0, 1, 2, 3]
    assert len({request.request_id for request in asked}) == 4, "logs tell them apart"
    assert len({event.index for event in events[:4]}) > 1, "side by side, not one after the other"
    for request in asked:
        request.ClearField("choice")
        request.ClearField("request_id")
    assert all(request == asked[0] for request in asked), "the same prompt, seed and limits"


async def test_one_reply_is_as_it_was() -> None:
    async with gateway(speaks(*TEXTS)) as served:
        for fields in ({}, {"n": 1}):
            request = inference_pb2.GenerateRequest(text="x", **fields)
            responses = [response async for response in served.stub.Generate(request, metadata=(("request_id", "me"),))]
            assert "".join(response.delta.text for response in responses) == "alpha"
            assert all(response.delta.index == response.finish.index == 0 for response in responses)
        assert {(asked.choice, asked.request_id) for asked in served.targets[0].requests} == {(0, "me")}


async def test_each_reply_has_its_own_end_limits_and_statistics() -> None:
    first = says(list(b"stop here, please"), 3, finish(STOP, rounds=1))
    second = says(list(b"abcdefghijkl"), 5, finish(LENGTH, rounds=2, drafted=7))
    third = says([*b"end", 256], 1, finish(STOP, rounds=3))
    async with gateway(each(first, second, third)) as served:
        replies = await within(served.client.complete_all("x", n=3, max_tokens=12, stop=["here"]))
    assert texts(replies) == ["stop ", "abcdefghijkl", "end"]
    assert [reply.finish.reason for reply in replies] == ["stop", "length", "stop"]
    assert [reply.finish.stop_match for reply in replies] == ["here", "", ""]
    assert [reply.finish.speculation.rounds for reply in replies] == [1, 2, 3]
    assert [reply.finish.usage.completion_tokens for reply in replies] == [9, 12, 4]
    assert [reply.finish.index for reply in replies] == [0, 1, 2]


# -- the field ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "settings", "allowed"),
    [
        (0, {}, "1 to 16 (max_choices)"),
        (-1, {}, "1 to 16 (max_choices)"),
        (17, {}, "1 to 16 (max_choices)"),
        (2**31 - 1, {}, "1 to 16 (max_choices)"),
        (3, {"max_choices": 2}, "1 to 2 (max_choices)"),
        (5, {"max_requests": 4}, "1 to 4 (max_requests)"),
    ],
)
async def test_a_number_out_of_range_is_refused_with_the_limit_named(
    n: int, settings: dict[str, int], allowed: str
) -> None:
    async with gateway(speaks("a"), **settings) as served:
        with pytest.raises(InvalidRequest) as refused:
            await within(served.client.complete_all("x", n=n))
        assert f"n: got {n}, allowed: {allowed}" in str(refused.value)
        assert not served.targets[0].requests
        assert served.server.servicer.requests == 0


async def test_the_limit_is_told_and_can_be_used_up() -> None:
    async with gateway(speaks("a"), max_choices=3) as served:
        most = (await within(served.client.get_model_info())).max_choices
        assert most == 3
        assert texts(await within(served.client.complete_all("x", n=most))) == ["a"] * 3


async def test_one_reply_is_not_given_for_several() -> None:
    async with gateway(speaks("a")) as served:
        with pytest.raises(InvalidRequest, match=r"n: got 2, allowed: 1 or absent\. Use complete_all"):
            await within(served.client.complete("x", n=2))
        assert (await within(served.client.complete("x", n=1))).text == "a"


async def test_every_reply_takes_a_place() -> None:
    async with gateway(forever, max_requests=4) as served:
        async with aclosing(served.client.generate("x", n=3)) as held:
            await within(anext(held))
            await until(lambda: served.targets[0].active == 3)
            assert (await within(served.client.status())).gateway_requests == 3
            with pytest.raises(Overloaded, match="max_requests: the request wants 2 places for replies, 1 of 4"):
                await within(served.client.complete_all("x", n=2))
            async with aclosing(served.client.generate("x")) as last:
                await within(anext(last))
                with pytest.raises(Overloaded, match="max_requests: all 4 places"):
                    await within(served.client.complete("x"))
        await until(lambda: served.server.servicer.requests == 0)


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "leave", "deadline"])
async def test_whoever_leaves_frees_all_sessions(how: str) -> None:
    """Some replies have ended, some are under way, one has not begun."""
    gate = asyncio.Event()
    async with gateway(each(says([97]), forever, fails(grpc.StatusCode.INTERNAL, gate), forever)) as served:
        target = served.targets[0]
        if how == "deadline":
            with pytest.raises(DeadlineExceeded):
                await within(served.client.complete_all("x", n=4, timeout_s=0.4))
        elif how == "leave":
            async with aclosing(served.client.generate("x", n=4)) as events:
                await within(anext(events))
                await until(lambda: len(target.requests) == 4)
        else:
            call = served.stub.Generate(inference_pb2.GenerateRequest(text="x", n=4))
            await within(call.read())
            await until(lambda: len(target.requests) == 4)
            call.cancel()
        await within(target.idle.wait())
        assert (len(target.requests), target.active) == (4, 0)
        await until(lambda: served.server.servicer.requests == 0)


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_the_error_of_one_ends_the_request_and_frees_the_others(code: grpc.StatusCode) -> None:
    gate = asyncio.Event()
    async with gateway(each(forever, fails(code, gate), forever)) as served:
        async with aclosing(served.client.generate("x", n=3)) as events:
            assert sorted([(await within(anext(events))).index, (await within(anext(events))).index]) == [0, 2]
            gate.set()
            with pytest.raises(ServerFault if code is grpc.StatusCode.INTERNAL else Overloaded, match="as told"):
                await within(anext(events))
        await within(served.targets[0].idle.wait())
        await until(lambda: served.server.servicer.requests == 0)


async def test_each_reply_moves_to_another_target_for_itself() -> None:
    """Choice 1 is lost in the middle, choice 2 at once; choice 0 stays where it is."""

    def lost(text: str, after: int) -> Script:
        async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
            yield list(text[:after].encode())
            yield grpc.StatusCode.UNAVAILABLE

        return script

    dying = each(says(list(b"alpha")), lost("bravo", 2), fails(grpc.StatusCode.UNAVAILABLE))
    async with gateway(dying, speaks("alpha", "bravo", "charlie")) as served:
        replies = await within(served.client.complete_all("x", n=3, temperature=1.0))
        moved = {request.choice: request for request in served.targets[1].requests}
        first = {request.choice: request for request in served.targets[0].requests}
    assert texts(replies) == ["alpha", "bravo", "charlie"]
    assert set(moved) == {1, 2}
    assert bytes_to_ints(moved[1].delivered_tokens, "d").tolist() == list(b"br")
    assert bytes_to_ints(moved[2].delivered_tokens, "d").tolist() == []
    for choice, request in moved.items():
        request.ClearField("delivered_tokens")
        assert request == first[choice], "the same prompt, seed and choice"


async def test_one_that_finds_no_other_target_ends_the_request() -> None:
    lost = fails(grpc.StatusCode.UNAVAILABLE)
    async with gateway(each(forever, lost), each(forever, lost), max_failovers=2) as served:
        with pytest.raises(Unavailable, match=r"max_failovers"):
            await within(served.client.complete_all("x", n=2))
        for target in served.targets:
            await within(target.idle.wait())
