"""The command line, as a person or a script runs it: in processes of its own, against a server in this one."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clients.command import Done, environment, run, started
from gateway.certificates import Authority
from gateway.rig import LENGTH, STOP, Script, Step, finish, gateway, model, says, within
from gateway.tokenizers_for_tests import PieceTokenizer
from paceline import __version__
from paceline.gateway.config import ListenerConfig
from paceline.rpc.arrays import bytes_to_ints
from paceline.rpc.tls import TlsConfig
from paceline.v1 import common_pb2, target_pb2

HI = list(b"Hi \xc3\xa9!")
END = finish(STOP, rounds=3, drafted=8, accepted=4)
END.speculation.fallbacks["late"] = 2


def prompt_of(request: target_pb2.DecodeRequest) -> str:
    return bytes(bytes_to_ints(request.prompt_tokens, "prompt").tolist()).decode()


async def test_generate_streams_text_and_sums_up_on_standard_error() -> None:
    async with gateway(says(HI, 2, END)) as served:
        done = await run("generate", "Hello", "--address", served.address, "--seed", "7")
        assert prompt_of(served.targets[0].requests[0]) == "[user]Hello", "the chat template is used"
    assert (done.code, done.out) == (0, "Hi é!\n")
    first, second = done.err.splitlines()
    assert first.startswith("6 tokens (stop), ")
    assert " tokens/s, first token after 0.0" in first
    assert first.endswith(" 11 prompt tokens, seed 7")
    assert second == "3 rounds, 1.33 accepted per round (4 of 8 drafted), fallbacks: late 2"


async def test_json_is_one_object_in_the_last_line() -> None:
    async with gateway(says(HI, 2, END)) as served:
        done = await run("generate", "Hello", "--json", "--seed", "7", "--address", served.address)
    reply = json.loads(done.out.splitlines()[-1])
    timings = reply.pop("timings")
    assert reply == {
        "text": "Hi é!",
        "token_ids": HI,
        "finish_reason": "stop",
        "stop_match": None,
        "usage": {"prompt_tokens": 11, "completion_tokens": 6},
        "speculation": {
            "rounds": 3,
            "drafted": 8,
            "accepted": 4,
            "fallbacks": {"late": 2},
            "relaxed_tokens": 0,
            "deviation_spent": 0.0,
            "limits_applied": {},
            "selections": {},
            "row_passes": 0,
            "row_cache_hits": 0,
            "verification": "exact",
            "strength": 0.0,
            "budgets": {},
        },
        "seed": 7,
        "model": "fake",
    }
    assert set(timings) == {"ttft_s", "total_s"}
    assert 0 < timings["ttft_s"] <= timings["total_s"]
    assert done.code == 0


async def test_every_option_reaches_the_server() -> None:
    async with gateway(says(HI, 2, finish(LENGTH))) as served:
        done = await run(
            "generate", "-", "--raw", "--max-tokens", "3", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9",
            "--seed", str(2**64 - 1), "--stop", "one", "--stop", "two", "--budget", "4", "--proposal", "coupled",
            "--strength", "1.5", "--selection", "draw_first", "--wait", "deadline", "--draft-deadline-ms", "25",
            "--no-learn", "--timeout", "20", "--json", "--address", served.address, stdin="from a pipe\n",
        )  # fmt: skip
        target = served.targets[0]
        request = target.requests[0]
        plain = await run("generate", "x", "--no-draft", "--address", served.address)
        auto = await run("generate", "x", "--budget", "auto", "--address", served.address)
        wrong = await run("generate", "x", "--budget", "some", "--address", served.address)
    assert (done.code, plain.code, auto.code) == (0, 0, 0)
    assert target.requests[2].speculation.auto_budget
    assert not target.requests[2].speculation.HasField("budget")
    assert wrong.code == 2
    assert "--budget: got 'some', allowed: auto, or a whole number" in wrong.err
    assert json.loads(done.out)["finish_reason"] == "length"
    assert prompt_of(request) == "from a pipe\n"
    assert request.sampling == common_pb2.SamplingParams(temperature=0.7, top_k=5, top_p=0.9, seed=2**64 - 1)
    assert (request.max_tokens, list(request.stop)) == (3, ["one", "two"])
    assert request.speculation == common_pb2.SpeculationParams(
        draft=True,
        budget=4,
        proposal=common_pb2.PROPOSAL_COUPLED,
        strength=1.5,
        selection=common_pb2.SELECTION_RULE_DRAW_FIRST,
        wait=common_pb2.WAIT_MODE_DEADLINE,
        deadline_ms=25,
        learn=False,
    )
    assert not request.trace
    assert target.left_s[0] is not None
    assert target.left_s[0] <= 20.1
    assert not target.requests[1].speculation.draft
    assert not target.requests[1].speculation.HasField("learn")
    assert target.left_s[1] is None


async def test_a_system_message_comes_first() -> None:
    async with gateway(says(HI)) as served:
        assert (await run("generate", "Hello", "--system", "brief", "--address", served.address)).code == 0
        assert prompt_of(served.targets[0].requests[0]) == "[system]brief[user]Hello"


async def test_a_model_without_template_says_how_to_go_on() -> None:
    tokenizer = PieceTokenizer(["▁ok"])
    async with gateway(says([256]), tokenizer=tokenizer) as served:
        refused = await run("generate", "Hello", "--address", served.address)
        assert (refused.code, refused.out) == (1, "")
        assert "--raw" in refused.err
        assert (await run("generate", "Hello", "--raw", "--address", served.address)).out == "ok\n"


async def test_the_environment_names_the_address_and_the_option_wins() -> None:
    async with gateway(says(HI)) as served:
        assert (await run("generate", "x", PACELINE_ADDRESS=served.address)).out == "Hi é!\n"
        done = await run("generate", "x", "--address", served.address, PACELINE_ADDRESS="127.0.0.1:1")
        assert done.out == "Hi é!\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["generate", "x", "--address", "127.0.0.1:1"], 1, "no answer from 127.0.0.1:1"),
        (["status", "--address", "127.0.0.1:1"], 1, "no answer from 127.0.0.1:1"),
        (["chat", "--address", "127.0.0.1:1"], 1, "no answer from 127.0.0.1:1"),
        (["generate", "x", "--address", "[::1"], 1, "address: got '[::1'"),
        (["generate", "x", "--tls-ca", "/nowhere.pem"], 1, "cannot read /nowhere.pem"),
    ],
)
async def test_errors_are_one_plain_line(arguments: list[str], code: int, text: str) -> None:
    done = await run(*arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("paceline: error: ")
    assert done.err.count("\n") == 1
    assert text in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["generate"], "PROMPT"),
        (["generate", "x", "--temperature", "hot"], "--temperature"),
        (["generate", "x", "--proposal", "lucky"], "ranked"),
        (["generate", "x", "--selection", "best"], "draw_first"),
        (["generate", "x", "--wait", "long"], "deadline"),
        (["generate", "x", "--draft-deadline-ms", "soon"], "--draft-deadline-ms"),
        (
            ["generate", "x", "--max-deviation", "1"],
            "--max-deviation 1.0 needs --nucleus-mass, 0 (the exact rule) to 1",
        ),
        (["generate", "x", "--max-deviation-per-token", "0"], "--max-deviation-per-token 0.0 needs --nucleus-mass"),
        (["chat", "--max-relaxations", "0"], "--max-relaxations 0 needs --nucleus-mass"),
        (["generate", "x", "--nucleus-temperature", "1"], "--nucleus-temperature 1.0 needs --nucleus-mass"),
        (["generate", "x", "--raw", "--system", "s"], "--raw"),
    ],
)
async def test_wrong_usage_is_code_2(arguments: list[str], text: str) -> None:
    done = await run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


async def test_what_the_server_refuses_is_told_in_its_words() -> None:
    async with gateway(says(HI)) as served:
        for arguments, text in (
            (["x", "--temperature", "-1"], "sampling.temperature: got -1.0, allowed: 0 to 1e+06"),
            (["x", "--seed", "-1"], "seed"),
            ([""], "chat.messages[0].content"),
            (["x", "--strength", "2"], "speculation.strength"),
            (["x", "--proposal", "sampled"], "speculation.proposal: got 'sampled', allowed: ranked where"),
            (["x", "--draft-deadline-ms", "60001"], "speculation.deadline_ms: got 60001, allowed: 1 to 60000"),
            (["x", "--draft-deadline-ms", "5", "--wait", "never"], "absent with wait never. Set wait to deadline"),
            (["x", "--draft-deadline-ms", "-1"], "draft_deadline_ms: got -1, allowed: a whole number, 1 to 60000"),
            (["x", "--nucleus-mass", "1.5"], "speculation.nucleus.mass: got 1.5, allowed: 0 (the exact rule) to 1"),
            (["x", "--nucleus-mass", "nan"], "speculation.nucleus.mass: got nan, allowed: 0 (the exact rule) to 1"),
            (["x", "--nucleus-mass", "1", "--max-relaxations", "-1"], "nucleus.max_relaxations: got -1, allowed: a"),
            (["x", "--nucleus-mass", "1", "--max-deviation", "-1"], "max_deviation: got -1.0, allowed: 0 or more"),
        ):
            done = await run("generate", *arguments, "--address", served.address)
            assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
            assert text in done.err
        assert not served.targets[0].requests


def endless(*, times: int = 10**9) -> Script:
    """Says "ab" and waits for ever; answers "ok" once it has done so `times` times."""
    asked = 0

    async def script(request: target_pb2.DecodeRequest) -> AsyncIterator[Step]:
        nonlocal asked
        asked += 1
        if asked <= times:
            yield list(b"ab")
            await asyncio.Event().wait()
        async for step in says(list(b"ok"))(request):
            yield step

    return script


async def test_ctrl_c_ends_with_130_and_frees_the_server() -> None:
    async with gateway(endless()) as served, started("generate", "x", "--address", served.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert await within(process.stdout.readexactly(2)) == b"ab"
        process.send_signal(signal.SIGINT)
        assert await within(process.wait()) == 130
        assert (await process.stderr.read()).strip() == b""
        await within(served.targets[0].cancelled.wait())


async def test_a_reader_that_leaves_ends_the_run_quietly() -> None:
    async with gateway(endless()) as served:
        command = f"{sys.executable} -m paceline_client.cli generate x --address {served.address} | head -c 1"
        process = await asyncio.create_subprocess_shell(command, stdout=PIPE, stderr=PIPE, env=environment())
        served.targets[0].script = says(list(b"abcdefgh" * 50))
        out, err = await within(process.communicate())
    assert out == b"a"
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


async def test_a_terminal_without_the_characters_shows_question_marks() -> None:
    async with gateway(says(HI)) as served:
        done = await run("generate", "x", "--address", served.address, PYTHONIOENCODING="ascii")
    assert (done.code, done.out) == (0, "Hi ?!\n")


async def test_tls_options(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("gateway.test")
    listener = ListenerConfig(tls=TlsConfig(cert=cert, key=key, ca=authority.certificate))
    mine, my_key = authority.issue("me.test")
    async with gateway(says(HI), listener=listener) as served:
        done = await run(
            "generate", "x", "--address", served.address, "--tls-ca", str(authority.certificate), "--tls-cert",
            str(mine), "--tls-key", str(my_key), "--tls-server-name", "gateway.test",
        )  # fmt: skip
    assert (done.code, done.out) == (0, "Hi é!\n")


async def test_status_for_people_and_for_scripts() -> None:
    async with gateway(says(HI)) as served:
        table = await run("status", "--address", served.address)
        as_json = await run("status", "--json", "--address", served.address)
        address = served.targets[0].address
    assert (table.code, as_json.code) == (0, 0)
    assert table.out.splitlines() == [
        "model     fake, float32 on cpu, 257 tokens, context 4096",
        "defaults  temperature 0, top-k 0, top-p 1, budget 8 of at most 64",
        "gateway   version 0.0.0, 0 replies in flight",
        f"target    {address}, 0 active, 0 queued, KV pages 0 of 10",
        "          0 passes, 0 tokens, 4 of 8 drafted accepted (50%)",
        "          drafter link ready 127.0.0.1:1, fallbacks: late 2",
        "drafter   127.0.0.1:1, suffix, 3 sessions, 0 streams",
    ]
    state = json.loads(as_json.out)
    assert state["model"]["model"] == "fake"
    assert state["status"]["targets"][0]["address"] == address


async def test_chat_keeps_the_conversation_until_it_is_reset() -> None:
    turns = "one\ntwo\n/reset\nthree\n\n/what now\n/exit\nnot read\n"
    async with gateway(says(list(b"ok"))) as served:
        done = await run("chat", "--system", "brief", "--address", served.address, stdin=turns)
        prompts = [prompt_of(request) for request in served.targets[0].requests]
    assert (done.code, done.out) == (0, "ok\nok\nok\n")
    assert prompts == [
        "[system]brief[user]one",
        "[system]brief[user]one[assistant]ok[user]two",
        "[system]brief[user]three",
    ]
    assert "/what: no such command" in done.err


async def test_chat_ends_with_its_input() -> None:
    async with gateway(says(list(b"ok"))) as served:
        assert (await run("chat", "--address", served.address, stdin="one")).out == "ok\n"
        assert (await run("chat", "--address", served.address)).code == 0


async def test_ctrl_c_in_a_chat_stops_the_answer_and_not_the_program() -> None:
    async with gateway(endless(times=1)) as served, started("chat", "--address", served.address) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        await process.stdin.drain()
        assert await within(process.stdout.readexactly(2)) == b"ab"
        process.send_signal(signal.SIGINT)
        await within(served.targets[0].cancelled.wait())
        process.stdin.write(b"two\n")
        process.stdin.close()
        assert (await within(process.stdout.read())) == b"\nok\n"
        assert await within(process.wait()) == 0
        assert prompt_of(served.targets[0].requests[1]) == "[user]one[assistant]ab[user]two"


async def test_an_error_in_a_chat_leaves_it_usable() -> None:
    async with gateway(says(list(b"ok")), info=model(context_length=40)) as served:
        done = await run("chat", "--address", served.address, stdin="x" * 60 + "\nshort\n")
        assert len(served.targets[0].requests) == 1
        assert prompt_of(served.targets[0].requests[0]) == "[user]short", "what was refused is no part of the history"
    assert (done.code, done.out) == (0, "ok\n")
    assert "error: chat.messages: got '66 tokens'" in done.err


async def test_version_and_help() -> None:
    assert (await run("--version")).out == f"paceline {__version__}\n"
    listed = (await run("--help")).out
    assert all(
        f"\n    {name} " in listed for name in ("generate", "chat", "status", "serve", "demo", "models", "study")
    )


BLOCKED = """
import sys
class Blocker:
    heavy = {"torch", "numpy", "ray", "transformers", "pydantic", "yaml", "rich", "grpc_health", "grpc_reflection"}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.heavy:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
import paceline_client
from paceline_client.cli import main
inside = sorted(name for name in sys.modules if name.startswith("paceline.") and not name.startswith("paceline.v1"))
assert inside == [], inside
sys.exit(main(sys.argv[1:]))
"""


async def blocked(*arguments: str) -> Done:
    """A run where nothing but the light client's dependencies can be imported."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BLOCKED, *arguments, stdout=PIPE, stderr=PIPE, env=environment()
    )
    out, err = await within(process.communicate())
    return Done(process.returncode or 0, out.decode(), err.decode())


async def test_the_light_client_needs_grpcio_and_protobuf_only() -> None:
    async with gateway(says(HI)) as served:
        done = await blocked("generate", "x", "--address", served.address)
    assert (done.code, done.out) == (0, "Hi é!\n")


@pytest.mark.parametrize(("command", "extra"), [("serve", "serve"), ("demo", "serve"), ("models", "serve")])
async def test_commands_of_the_server_say_what_to_install(command: str, extra: str) -> None:
    done = await blocked(command)
    assert done.code == 1
    assert f"pip install 'paceline[{extra}]'" in done.err
    assert done.err.count("\n") == 1


async def test_commands_of_the_server_are_found() -> None:
    listed: Any = await run("models", "list")
    assert listed.code == 0, listed.err
    assert "smollm2-135m-instruct" in listed.out
    assert (await run("models")).code == 2
