"""`paceline generate` with --show-tree, --trace and nucleus options, as a person or a script runs it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from clients.command import run
from gateway.rig import STOP, Script, Step, finish, gateway, model, says
from paceline.rpc.arrays import ints_to_bytes
from paceline.v1 import common_pb2, inference_pb2, target_pb2
from paceline_client.commands.status import table
from paceline_client.commands.tree import LEGEND
from paceline_client.service import model_info_of, status_of

FIRST = common_pb2.RoundTrace(
    position=12,
    emitted=list(b"Hi "),
    rule="draft",
    reason="the drafter is fast",
    tree_tokens=list(b"Hie"),
    tree_parents=[-1, 0, 0],
    tree_log_probs=[-0.5, -1.0, float("-inf")],
    accepted=[0, 1],
    relaxed=[1],
    drawn=32,
    draft_ms=1.5,
    pass_ms=4.0,
    pass_tokens=4,
    deviation_spent=0.25,
    budget=6,
    budget_reason="trees\npay",
)
SECOND = common_pb2.RoundTrace(position=15, emitted=[33], rule="draft", fallback="late", drawn=33, pass_ms=2.0)
END = finish(
    STOP,
    rounds=2,
    drafted=3,
    accepted=2,
    relaxed_tokens=1,
    deviation_spent=0.25,
    limits_applied={"max_relaxations": 2},
    selections={"rerank": 1, "draft": 1},
    row_passes=3,
    row_cache_hits=1,
    tokens_held_back=1,
    budgets={6: 1, 0: 1},
)
TREES = [
    LEGEND,
    "",
    "round 1 at 12: draft (the drafter is fast), 2 of 3 drafted accepted (1 relaxed), draft 1.5 ms, pass 4.0 ms,"
    " 4 tokens in it, budget 6 (trees pay), deviation 0.25",
    "(prompt)",
    "└─ 'H' 0.607 [accepted]",
    "   ├─ 'i' 0.368 [relaxed]",
    "   │  └─ ' ' [drawn]",
    "   └─ 'e' <0.001",
    "",
    "round 2 at 15: draft, no tree, pass 2.0 ms, 0 tokens in it, fallback late",
    "' '",
    "└─ '!' [drawn]",
]


def traced(*rounds: common_pb2.RoundTrace, end: target_pb2.TargetFinish = END) -> Script:
    """A message for each round; the rounds only where they are asked for."""

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        for trace in rounds:
            told = [trace] if request.trace else []
            yield target_pb2.DecodeResponse(tokens=ints_to_bytes(list(trace.emitted)), rounds=told)
        yield end

    return script


async def test_trees_come_before_the_text() -> None:
    async with gateway(traced(FIRST, SECOND)) as served:
        done = await run("generate", "x", "--show-tree", "--address", served.address)
    assert (done.code, done.out.splitlines()) == (0, [*TREES, "", "Hi !"])
    assert (
        "rounds by rule: draft 1, rerank 1, 3 row passes, 1 rows from the cache, 1 drawn tokens held back" in done.err
    )
    assert "rounds by budget: 0 1, 6 1" in done.err
    assert "relaxed" not in done.err, "nobody asked for a nucleus"


async def test_one_request_serves_trees_trace_and_json(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text("old\n")
    arguments = ["generate", "x", "--json", "--show-tree", "--trace", str(path), "--seed", "7"]
    async with gateway(traced(FIRST, SECOND)) as served:
        done = await run(*arguments, "--address", served.address)
        assert len(served.targets[0].requests) == 1
    reply = json.loads(done.out)
    assert reply["text"] == "Hi !"
    assert done.err.splitlines() == TREES
    first, second, end = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {
        "type": "round",
        "choice": 0,
        "position": 12,
        "emitted": list(b"Hi "),
        "emitted_texts": ["H", "i", " "],
        "rule": "draft",
        "reason": "the drafter is fast",
        "tree_tokens": list(b"Hie"),
        "tree_texts": ["H", "i", "e"],
        "tree_parents": [-1, 0, 0],
        "tree_log_probs": [-0.5, -1.0, None],
        "accepted": [0, 1],
        "relaxed": [1],
        "drawn": 32,
        "focused": False,
        "fallback": "",
        "draft_ms": 1.5,
        "pass_ms": 4.0,
        "pass_tokens": 4,
        "deviation_spent": 0.25,
        "budget": 6,
        "budget_reason": "trees\npay",
    }
    assert set(first) - {"type", "choice"} == {field.name for field in common_pb2.RoundTrace.DESCRIPTOR.fields}
    assert (second["fallback"], second["draft_ms"]) == ("late", None)
    assert end == {
        "type": "finish",
        "choice": 0,
        **{name: reply[name] for name in reply if name not in ("text", "token_ids")},
    }
    assert end["speculation"]["selections"] == {"rerank": 1, "draft": 1}


async def test_a_trace_alone_leaves_the_text_as_it_streams(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    async with gateway(traced(FIRST, SECOND)) as served:
        done = await run("generate", "x", "--trace", str(path), "--address", served.address)
    assert (done.code, done.out) == (0, "Hi !\n")
    assert [json.loads(line)["type"] for line in path.read_text().splitlines()] == ["round", "round", "finish"]


async def test_a_reply_that_breaks_off_leaves_its_rounds(tmp_path: Path) -> None:
    async def breaks(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        yield target_pb2.DecodeResponse(tokens=ints_to_bytes(list(FIRST.emitted)), rounds=[FIRST])
        yield grpc.StatusCode.INTERNAL

    path = tmp_path / "rounds.jsonl"
    async with gateway(breaks) as served:
        done = await run("generate", "x", "--trace", str(path), "--address", served.address)
    assert (done.code, done.err.count("paceline: error: ")) == (1, 1)
    assert [json.loads(line)["position"] for line in path.read_text().splitlines()] == [12]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/rounds.jsonl", "No such file or directory"),
        (".", "Is a directory"),
        ("", "Is a directory"),
        ("file/rounds.jsonl", "Not a directory"),
    ],
)
async def test_a_file_that_cannot_be_written_is_told_before_anything_is_asked(
    path: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    async with gateway(traced(FIRST)) as served:
        named = str(tmp_path / path) if path else ""
        done = await run("generate", "x", "--trace", named, "--address", served.address)
        assert not served.targets[0].requests
    expected = f"paceline: error: --trace: cannot write {named!r}: {reason}; name a file in a folder that is writable\n"
    assert (done.code, done.out, done.err) == (1, "", expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
async def test_a_disk_that_fills_up_is_one_plain_line() -> None:
    async with gateway(traced(FIRST, SECOND)) as served:
        done = await run("generate", "x", "--trace", "/dev/full", "--address", served.address)
    assert done.code == 1
    assert "error: --trace: cannot write '/dev/full': No space left on device" in done.err
    assert "Traceback" not in done.err


async def test_nucleus_options_reach_the_server_and_the_summary_tells_what_came_of_them() -> None:
    async with gateway(traced(FIRST, SECOND), says(list(b"ok"))) as served:
        done = await run(
            "generate", "x", "--temperature", "1", "--proposal", "sampled", "--nucleus-mass", "0.9",
            "--nucleus-temperature", "0.5", "--max-deviation", "1.5", "--max-deviation-per-token", "0.25",
            "--max-relaxations", "3", "--address", served.address,
        )  # fmt: skip
        bare = await run("generate", "x", "--nucleus-mass", "0", "--address", served.address)
        asked, asked_bare = (target.requests[0].speculation for target in served.targets)
    assert (done.code, bare.code) == (0, 0)
    assert asked.proposal == common_pb2.PROPOSAL_SAMPLED
    assert asked.nucleus == common_pb2.NucleusVerification(
        mass=0.9, temperature=0.5, max_deviation=1.5, max_deviation_per_token=0.25, max_relaxations=3
    )
    assert asked_bare.nucleus == common_pb2.NucleusVerification(mass=0)
    assert done.err.splitlines()[-1] == "1 tokens relaxed, deviation 0.25 spent, limits applied: max_relaxations 2"
    assert bare.err.splitlines()[-1] == "0 tokens relaxed, deviation 0 spent, limits applied: none"


async def test_a_chat_shows_the_trees_of_every_answer() -> None:
    async with gateway(traced(FIRST, SECOND)) as served:
        done = await run("chat", "--show-tree", "--address", served.address, stdin="one\ntwo\n")
    assert (done.code, done.out.splitlines()) == (0, [*TREES, "", "Hi !", *TREES[1:], "", "Hi !"])


def test_status_shows_what_selection_did_where_there_is_something() -> None:
    info = model(
        default_selection=common_pb2.SELECTION_RULE_AUTO,
        default_wait=common_pb2.WAIT_MODE_DEADLINE,
        default_deadline_ms=40,
    )
    target = inference_pb2.TargetStatus(
        address="a:1",
        selections={"rerank": 2, "draft": 5},
        selection_reason="rows\nare free",
        row_cache_hits=3,
        shared_prompt_tokens=5,
        relaxed=4,
    )
    lines = table(model_info_of(info), status_of(inference_pb2.GetStatusResponse(targets=[target])))
    assert lines[1] == (
        "defaults  temperature 0, top-k 0, top-p 1, budget 8 of at most 64, selection auto, wait deadline 40 ms"
    )
    assert lines[5:9] == [
        "          drafter link absent, fallbacks: none",
        "          rounds by rule: draft 5, rerank 2",
        "          auto: rows are free",
        "          3 rows from the cache, 5 prompt tokens shared, 4 tokens relaxed",
    ]
    target.budgets.update({8: 3, 0: 2})
    target.budget_reason = "trees\npay"
    chosen = model(default_budget=64, default_auto_budget=True)
    lines = table(model_info_of(chosen), status_of(inference_pb2.GetStatusResponse(targets=[target])))
    assert lines[1].endswith("budget auto, at most 64")
    assert lines[8:10] == ["          rounds by budget: 0 2, 8 3", "          auto budget: trees pay"]
    target.ClearField("budgets")
    target.ClearField("budget_reason")
    target.ClearField("row_cache_hits")
    target.ClearField("shared_prompt_tokens")
    lines = table(model_info_of(model()), status_of(inference_pb2.GetStatusResponse(targets=[target])))
    assert lines[8] == "          4 tokens relaxed"
    assert lines[1].endswith("budget 8 of at most 64")
