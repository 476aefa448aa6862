"""The whole stack with the default model through `paceline serve`, as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.processes import alive, command_line, pool_of, replicas, wait_gone
from app.readme import commands
from app.served import Served, run
from paceline.cli.ports import free_ports
from paceline_client.client import AsyncClient
from paceline_client.errors import ClientError
from paceline_client.replies import Delta, Finish
from paceline_client.request import Chat, GenerateFields

pytestmark = [pytest.mark.ray, pytest.mark.model]
EDIT = Chat.user(
    "Correct the spelling and repeat the text: The libary team meets on Tuesday at ten in the north bilding. Please"
    " bring the list of damaged books, the list of lost books and the buget for new shelves. After lunch the team"
    " visits the archive in the cellar, where the oldest maps of the city are kept. Maria takes the minutes."
)


@dataclass(frozen=True)
class Stack:
    served: Served
    ready: dict[str, str]

    @property
    def address(self) -> str:
        return self.ready["grpc"]

    @property
    def pid(self) -> int:
        return self.served.process.pid


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    http, grpc = free_ports(2)
    (serve,) = [command for command in commands() if command.startswith("paceline serve")]
    assert serve == "paceline serve --grpc-port 9000 --http-port 8000"
    with Served(shlex.split(serve.replace("9000", str(grpc)).replace("8000", str(http)))[2:]) as served:
        yield Stack(served, served.wait_ready())


def test_ready_line_names_what_is_served(stack: Stack) -> None:
    assert set(stack.ready) == {"grpc", "http", "ray", "target", "drafter"}
    assert (stack.ready["target"], stack.ready["drafter"]) == (
        "smollm2-135m-instruct",
        "fused:smollm2-135m-drafter",
    )


def test_readme_commands(stack: Stack, tmp_path: Path) -> None:
    """Every client command of the README, as it stands there."""
    shown = [command for command in commands() if command.split()[1] in ("generate", "chat", "status", "models")]
    assert len(shown) == 12
    for command in shown:
        text_in = "Hello\n" if command == "paceline chat" else ""
        done = run(*shlex.split(command)[1:], address=stack.address, text_in=text_in, timeout=300, folder=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command
    rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert rounds[-1]["type"] == "finish"
    assert len(rounds) > 2


def test_json_reply_has_the_promised_fields(stack: Stack) -> None:
    replies = []
    for extra in ([], ["--no-draft"]):
        done = run("generate", "Name three rivers.", "--max-tokens", "24", "--json", *extra, address=stack.address)
        assert done.returncode == 0, done.stderr
        replies.append(json.loads(done.stdout.splitlines()[-1]))
    drafted, plain = replies
    assert {"text", "token_ids", "finish_reason", "usage", "speculation", "timings"} <= set(drafted)
    assert set(drafted["usage"]) == {"prompt_tokens", "completion_tokens"}
    assert {"rounds", "drafted", "accepted", "fallbacks"} <= set(drafted["speculation"])
    assert {"ttft_s", "total_s"} <= set(drafted["timings"])
    assert len(drafted["token_ids"]) == drafted["usage"]["completion_tokens"] == 24
    assert drafted["finish_reason"] == "length"
    assert drafted["token_ids"] == plain["token_ids"]
    assert plain["speculation"]["drafted"] == 0


def test_status_shows_target_and_drafter(stack: Stack) -> None:
    done = run("status", "--json", address=stack.address)
    status = json.loads(done.stdout)["status"]
    assert [target["drafter_state"] for target in status["targets"]] == ["ready"]
    assert [drafter["proposer"] for drafter in status["drafters"]] == ["fused"]


def test_replicas_are_on_their_pools(stack: Stack) -> None:
    for name in ("Gateway", "Target", "Drafter"):
        (pid,) = replicas(stack.pid, name)
        assert pool_of(pid) == name.lower()


def test_http_describes_the_model_and_refuses_the_rest_by_name(stack: Stack) -> None:
    with urllib.request.urlopen(f"http://{stack.ready['http']}/", timeout=30) as answer:
        assert json.load(answer)["model"] == "smollm2-135m-instruct"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{stack.ready['http']}/v1/chat/completions", data=b"{}", timeout=30)
    assert refused.value.code == 501
    assert "gRPC" in json.loads(refused.value.read())["error"]


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port"])
def test_taken_port_is_named_at_once_and_the_other_server_goes_on(stack: Stack, flag: str) -> None:
    port = stack.ready["grpc" if flag == "--grpc-port" else "http"].rpartition(":")[2]
    other = "--http-port" if flag == "--grpc-port" else "--grpc-port"
    before = set(os.listdir("/tmp"))
    done = run("serve", flag, port, other, str(free_ports(1)[0]), timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{flag}: got {port}, allowed: a free port" in done.stderr
    assert "starting Ray" not in done.stderr
    for folder in {name for name in os.listdir("/tmp") if name.startswith("paceline-")} - before:
        assert not any(folder in command_line(int(pid)) for pid in os.listdir("/proc") if pid.isdigit())
    assert run("status", address=stack.address).returncode == 0


async def test_killed_drafter_slows_and_does_not_change_the_answer(stack: Stack) -> None:
    """Case E4 (a) and (e): SIGKILL of the drafter's process in the middle of a stream."""
    async with AsyncClient(stack.address) as client:
        # Long, so that most of it is still to come when the drafter dies, however slow the machine's client side is.
        request = GenerateFields(max_tokens=160, temperature=0.0, ignore_eos=True)
        plain = await client.complete(EDIT, **request, draft=False)
        (victim,) = replicas(stack.pid, "Drafter")
        tokens: list[int] = []
        finish = None
        async for event in client.generate(EDIT, **request):
            if isinstance(event, Delta):
                tokens.extend(event.token_ids)
                if len(tokens) >= 16 and alive(victim):
                    os.kill(victim, signal.SIGKILL)
                    await asyncio.to_thread(wait_gone, {victim})
            else:
                finish = event
        assert isinstance(finish, Finish)
        assert not alive(victim)
        assert tuple(tokens) == plain.token_ids
        assert finish.speculation.accepted > 0, "drafts were in use before the kill"
        assert finish.speculation.fallbacks.get("lost", 0) + finish.speculation.fallbacks.get("absent", 0) > 0

        deadline = time.monotonic() + 60
        while [target.drafter_state for target in (await client.status()).targets] != ["ready"]:
            assert time.monotonic() < deadline, "the target found no new drafter"
            await asyncio.sleep(0.2)
        (successor,) = replicas(stack.pid, "Drafter")
        assert successor != victim
        assert pool_of(successor) == "drafter"
        again = await client.complete(EDIT, max_tokens=40, temperature=0.0)
        assert again.token_ids == plain.token_ids[:40]
        assert again.finish.speculation.accepted > 0, "drafting resumed without a restart"


async def test_killed_target_is_replaced_and_the_gateway_finds_the_new_one(stack: Stack) -> None:
    (victim,) = replicas(stack.pid, "Target")
    os.kill(victim, signal.SIGKILL)
    async with AsyncClient(stack.address) as client:
        deadline = time.monotonic() + 90
        while True:
            try:
                reply = await client.complete(EDIT, max_tokens=8, temperature=0.0, timeout_s=20)
                break
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.5)
    assert reply.finish.usage.completion_tokens == 8
    assert replicas(stack.pid, "Target") != [victim]


def test_sigterm_ends_everything(stack: Stack) -> None:
    """Last: it ends the stack of this module."""
    processes = stack.served.processes
    assert len(processes) > 10
    folders = {word for pid in processes for word in command_line(pid).split() if word.startswith("--temp-dir=")}
    (run_dir,) = {os.path.dirname(folder.removeprefix("--temp-dir=")) for folder in folders}
    assert os.path.isdir(run_dir)
    stack.served.process.send_signal(signal.SIGTERM)
    assert stack.served.process.wait(30) == 0, "".join(stack.served.errors)
    assert wait_gone(processes, 5) == set()
    assert not os.path.exists(run_dir)
    assert stack.served.process.stdout is not None
    assert stack.served.process.stdout.read() == "", "standard output has the ready line and nothing else"


@pytest.mark.parametrize(
    ("step", "number", "code", "options"),
    [
        # Where no replica starts yet, its model need not be looked at first.
        ("starting Ray nodes", signal.SIGTERM, 0, ["--drafter", "suffix"]),
        ("starting Ray Serve", signal.SIGKILL, -signal.SIGKILL, ["--drafter", "suffix"]),
        ("deploying", signal.SIGINT, 0, []),
    ],
    ids=["starting Ray nodes", "starting Ray Serve", "deploying"],
)
def test_nothing_is_left_of_a_start_that_was_cut(
    step: str, number: signal.Signals, code: int, options: list[str]
) -> None:
    http, grpc = free_ports(2)
    with Served(["--grpc-port", str(grpc), "--http-port", str(http), *options]) as served:
        served.wait_for_step(step)
        processes = served.processes
        served.process.send_signal(number)
        assert served.process.wait(30) == code
        assert wait_gone(processes) == set()


def test_failed_start_names_the_reason_and_leaves_nothing() -> None:
    done = run("serve", "--target", "no-such-model", timeout=60)
    assert done.returncode == 1
    assert "no-such-model" in done.stderr
    assert "starting Ray" not in done.stderr
