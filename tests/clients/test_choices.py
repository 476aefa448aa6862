"""Several replies at the client: in the library, and as a person or a script sees them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from clients.command import run, started
from gateway.rig import LENGTH, STOP, Script, Step, finish, gateway, says, within
from paceline.rpc.arrays import ints_to_bytes
from paceline.rpc.server import DataPlaneServer
from paceline.v1 import common_pb2, inference_pb2, inference_pb2_grpc, target_pb2
from paceline_client import AsyncClient, Client, Delta, Event, Finish, InvalidRequest, Reply, ServerFault, Usage
from paceline_client.commands.in_order import in_order
from paceline_client.commands.tree import LEGEND
from paceline_client.replies import Replies, Speculation, Timings
from paceline_client.request import request_of

TEXTS = ["Hi!", "second\n", "third"]


def speaks(*texts: str) -> Script:
    """Choice c says its text, the last one first: each waits until the next one has ended."""
    ended = [asyncio.Event() for _ in texts]

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        tokens = list(texts[request.choice].encode())
        for number, token in enumerate(tokens):
            trace = common_pb2.RoundTrace(position=number, emitted=[token], rule="draft", drawn=token)
            yield target_pb2.DecodeResponse(tokens=ints_to_bytes([token]), rounds=[trace] if request.trace else [])
        if request.choice + 1 < len(texts):
            await ended[request.choice + 1].wait()
        yield finish(STOP, rounds=request.choice + 1)
        ended[request.choice].set()

    return script


def end(index: int) -> Finish:
    return Finish("stop", "", Usage(1, 1), Speculation(1, 0, 0, {}), Timings(0.0, 0.0), 1, "m", index)


# -- the library -------------------------------------------------------------------------------------------------------


def test_the_number_has_its_place_on_the_wire() -> None:
    assert request_of("x", {"n": 3}) == inference_pb2.GenerateRequest(text="x", n=3)
    assert request_of("x", {"n": 0}).HasField("n"), "the server refuses it by name"
    assert not request_of("x", {"n": None}).HasField("n")
    with pytest.raises(InvalidRequest, match="n: got 'many'"):
        request_of("x", {"n": "many"})  # type: ignore[typeddict-item]


def test_replies_are_put_together_by_index() -> None:
    growing = Replies()
    events: list[Event] = [Delta((1,), "a"), Delta((2,), "b", (), 1), Delta((3,), "c"), end(0), Delta((4,), "d", (), 1)]
    found = [growing.add(event) for event in (*events, end(1))]
    assert found == [None, None, None, Reply("ac", (1, 3), end(0)), None, Reply("bd", (2, 4), end(1))]


def test_replies_are_told_one_after_the_other() -> None:
    first, late, early, other = Delta((1,), "a"), Delta((2,), "b"), Delta((3,), "c", (), 1), Delta((4,), "d", (), 2)
    came: list[Event] = []

    def stream() -> Any:
        for event in (early, first, other, end(2), late, end(0), end(1)):
            came.append(event)
            yield event

    ordered = in_order(stream())
    assert next(ordered) == first
    assert came == [early, first], "the first reply is not held up"
    assert list(ordered) == [late, end(0), early, end(1), other, end(2)]


async def test_the_whole_replies_by_index() -> None:
    async with gateway(speaks(*TEXTS)) as served:
        replies = await within(served.client.complete_all("x", n=3, seed=2))
        with Client(served.address) as client:
            served.targets[0].script = speaks(*TEXTS)
            same = await asyncio.to_thread(client.complete_all, "x", n=3, seed=2)
            served.targets[0].script = speaks(TEXTS[0])
            one = await asyncio.to_thread(client.complete_all, "x", seed=2)
    assert [(reply.text, reply.finish.index, reply.finish.seed) for reply in replies] == [
        (text, index, 2) for index, text in enumerate(TEXTS)
    ]
    assert [reply.token_ids for reply in same] == [reply.token_ids for reply in replies]
    assert [reply.text for reply in one] == TEXTS[:1]


@pytest.mark.parametrize("ends", [[], [0], [0, 1]])
async def test_a_stream_that_lacks_a_finish_is_a_fault(ends: Sequence[int]) -> None:
    class Short(inference_pb2_grpc.InferenceServiceServicer):
        async def Generate(self, request: Any, context: Any) -> None:  # noqa: N802
            for index in ends:
                done = inference_pb2.Finish(reason=common_pb2.FINISH_REASON_STOP, index=index)
                await context.write(inference_pb2.GenerateResponse(finish=done))

    def add(server: grpc.aio.Server) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(Short(), server)

    server = DataPlaneServer((), add, host="127.0.0.1", port=0)
    async with AsyncClient(await server.start()) as client:
        try:
            with pytest.raises(ServerFault, match="without a finish"):
                await within(client.complete_all("x", n=3))
        finally:
            await server.stop(0)


# -- the command line --------------------------------------------------------------------------------------------------


async def test_replies_are_shown_under_their_numbers() -> None:
    async with gateway(speaks(*TEXTS)) as served:
        done = await run("generate", "x", "-n", "3", "--address", served.address)
    assert (done.code, done.out) == (
        0,
        "--- choice 0 ---\nHi!\n\n--- choice 1 ---\nsecond\n\n--- choice 2 ---\nthird\n",
    )
    lines = done.err.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["choice 0"] * 2 + ["choice 1"] * 2 + ["choice 2"] * 2
    assert lines[2].startswith("choice 1: 7 tokens (stop), ")
    assert lines[3].startswith("choice 1: 2 rounds, ")


@pytest.mark.parametrize("arguments", [[], ["-n", "1"], ["--choices", "1"]])
async def test_one_reply_is_shown_as_ever(arguments: list[str]) -> None:
    async with gateway(speaks("Hi!")) as served:
        done = await run("generate", "x", *arguments, "--address", served.address)
        served.targets[0].script = speaks("Hi!")
        as_json = await run("generate", "x", "--json", *arguments, "--address", served.address)
    assert (done.code, done.out, done.err.count("choice")) == (0, "Hi!\n", 0)
    assert {"text", "token_ids", "finish_reason", "usage", "timings"} < set(json.loads(as_json.out))


async def test_json_holds_all_choices_and_counts_the_prompt_once() -> None:
    async with gateway(speaks(*TEXTS)) as served:
        command = ("generate", "xyz", "--raw", "--json", "--seed", "7", "--address", served.address)
        done = await run(*command, "--choices", "3")
        served.targets[0].script = speaks("Hi!")
        single = await run(*command)
    found, one = json.loads(done.out), json.loads(single.out)
    assert set(found) == {"choices", "usage", "seed", "model"}
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": sum(map(len, TEXTS))}
    assert (found["seed"], found["model"]) == (7, "fake")
    assert [choice["text"] for choice in found["choices"]] == TEXTS
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert [choice["speculation"]["rounds"] for choice in found["choices"]] == [1, 2, 3]
    for choice in found["choices"]:
        assert set(choice) == {"index", *one} - {"usage", "seed", "model"}


async def test_trees_and_trace_tell_whose_rounds_they_are(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    async with gateway(speaks("ab", "c")) as served:
        done = await run("generate", "x", "-n", "2", "--show-tree", "--trace", str(path), "--address", served.address)
    shown = [line for line in done.out.splitlines() if line.startswith(("---", "round"))]
    assert [line.split(":")[0] for line in shown] == [
        "--- choice 0 ---", "round 1 at 0", "round 2 at 1", "--- choice 1 ---", "round 1 at 0",
    ]  # fmt: skip
    assert done.out.count(LEGEND) == 1
    assert done.out.index("ab\n") < done.out.index("--- choice 1"), "each text behind its trees"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for index, text in enumerate(("ab", "c")):
        own = [line for line in lines if line["choice"] == index]
        assert [line["type"] for line in own] == ["round"] * len(text) + ["finish"]
        assert bytes(token for line in own[:-1] for token in line["emitted"]).decode() == text
        assert own[-1]["usage"]["completion_tokens"] == len(text)


async def test_trees_beside_json_go_to_standard_error() -> None:
    async with gateway(speaks("ab", "c")) as served:
        done = await run("generate", "x", "-n", "2", "--show-tree", "--json", "--address", served.address)
    assert len(json.loads(done.out)["choices"]) == 2
    assert [line for line in done.err.splitlines() if line.startswith("---")] == [
        "--- choice 0 ---",
        "--- choice 1 ---",
    ]


async def test_the_first_reply_is_streamed_and_ctrl_c_frees_all() -> None:
    async def endless(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield list(b"ab" if request.choice == 0 else b"no")
        if request.choice == 2:
            yield finish(LENGTH)
        await asyncio.Event().wait()

    async with gateway(endless) as served, started("generate", "x", "-n", "3", "--address", served.address) as process:
        assert process.stdout is not None
        assert await within(process.stdout.readexactly(19)) == b"--- choice 0 ---\nab"
        process.send_signal(signal.SIGINT)
        assert await within(process.wait()) == 130
        assert await process.stdout.read() == b""
        await within(served.targets[0].idle.wait())


@pytest.mark.parametrize("n", ["0", "-1", "17"])
async def test_a_number_out_of_range_is_told_in_the_servers_words(n: str) -> None:
    async with gateway(speaks("a")) as served:
        done = await run("generate", "x", f"--choices={n}", "--address", served.address)
        assert not served.targets[0].requests
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert f"n: got {n}, allowed: 1 to 16 (max_choices)" in done.err
    assert (await run("generate", "x", "-n", "two")).code == 2


async def test_an_error_after_a_whole_reply_leaves_it_shown() -> None:
    broken = asyncio.Event()

    async def breaks(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        if request.choice:
            await broken.wait()
            yield grpc.StatusCode.INTERNAL
        async for step in says(list(b"ok"))(request):
            yield step

    async with gateway(breaks) as served:
        command = ("generate", "x", "-n", "2", "--address", served.address)
        async with started(*command) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert await within(process.stdout.readexactly(20)) == b"--- choice 0 ---\nok\n"
            broken.set()
            assert await within(process.wait()) == 1
            assert b"paceline: error: as told" in await process.stderr.read()
