"""The study of peers: its arithmetic, the other systems on a tiny model, and a small run of everything."""

from __future__ import annotations

import argparse
import json
import math
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.drafter.config import DrafterConfig
from paceline.errors import InvalidField
from paceline.prompt_file import Prompt
from paceline.runtime.models import ModelSpec
from paceline.runtime.transformers_runner import load_runner
from paceline.study import peers_llama, peers_own
from paceline.study.bare import BareModel
from paceline.study.cli import add_parser
from paceline.study.equality import Judge
from paceline.study.parts import Parts
from paceline.study.peers import Decoded, System, Times, decode_all
from paceline.study.peers_cli import run_peers
from paceline.study.peers_equal import Equal, RunnerRows, compared
from paceline.study.peers_llama import llama_peer
from paceline.study.peers_own import OwnSettings, over_alone, own_stacks
from paceline.study.peers_report import Outcome, judged, ratios, rows
from paceline.study.peers_transformers import transformers_systems
from paceline.study.report import Report
from paceline.study.stack import StackConfig
from paceline.study.study_peers import PeerSettings, study_peers
from paceline.study.truncated import truncated_model
from support.fake_stack import Broken, FakeStack
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [9, 8, 9, 8, 9]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(tmp_path_factory.mktemp("peers") / "model", vocab=300)
    return save_tokenizer(folder, byte_level_tokenizer(300))


def reply(per_token_s: float, *tokens: int) -> Decoded:
    return Decoded(tokens, 10 * per_token_s, 10)


def times(*per_token_s: float, prompts: int = 2) -> Times:
    return Times([reply(each) for each in per_token_s], prompts)


async def nothing(_: object) -> Decoded:
    raise AssertionError("not to be decoded")


def outcome(name: str, dtype: str, *per_token_s: float, faults: int | None = None) -> Outcome:
    return Outcome(System(name, dtype, nothing), times(*per_token_s), Equal(2, 0, faults))


def test_a_replys_time_is_that_after_its_first_arrival() -> None:
    decoded = Decoded.of([1, 2, 3, 4, 5], [(1.0, 2), (2.0, 1), (4.0, 2)])
    assert (decoded.tokens, decoded.seconds, decoded.timed, decoded.per_token_s) == ((1, 2, 3, 4, 5), 3.0, 3, 1.0)
    assert math.isnan(Decoded.of([1], [(1.0, 1)]).per_token_s)
    assert math.isnan(Decoded.of([], []).per_token_s)


def test_speed_over_another_system_is_by_pairs_of_replies() -> None:
    ours, base = times(1.0, 2.0, 1.0, 2.0), times(2.0, 4.0, 2.0, 4.0)
    pair = ours.over(base)
    assert pair is not None
    assert pair[0].pairs == 4
    assert [each.mean for each in pair if each] == pytest.approx([2.0, 2.0])
    assert ours.rate().mean == pytest.approx(20 / 30)
    unfinished = Times([reply(1.0), Decoded((1,), 0.0, 0), reply(1.0), reply(1.0)], 2)
    left = unfinished.over(base)
    assert left is not None
    assert left[0] == left[1], "a prompt that came once holds the spread between prompts"
    assert left[0].pairs == 3, "a reply that came at once has no speed"
    assert Times([Decoded((), 0.0, 0)] * 2, 2).over(times(1.0, 1.0)) is None
    alone = over_alone([0.25, 0.25], [1.0, 1.0])
    assert (alone["ratio"], alone["tokens_per_s"], alone["alone_tokens_per_s"]) == (4.0, 4.0, 1.0)


async def test_systems_take_turns_after_a_warm_up() -> None:
    order: list[str] = []

    def system(name: str) -> System:
        async def decode(prompt: object) -> Decoded:
            order.append(name)
            return reply(1.0, len(order))

        return System(name, "x", decode)

    found = await decode_all([system(name) for name in "abc"], PROMPTS, 2, Parts(None, "peers", {}), lambda _: None)
    assert "".join(order) == "abc" + "abc" + "bac" + "cab" + "acb"
    assert {key: len(each.replies) for key, each in found.items()} == {"a, x": 4, "b, x": 4, "c, x": 4}
    assert [each.tokens for each in found["a, x"].first] == [(4,), (8,)]


async def test_decoding_that_was_broken_off_goes_on_with_the_same_turns(tmp_path: Path) -> None:
    order: list[str] = []
    breaks_at: int | None = 3 + 3 * 2 + 1

    def system(name: str) -> System:
        async def decode(prompt: object) -> Decoded:
            if len(order) == breaks_at:
                raise Broken
            order.append(name)
            return Decoded((len(order), 7), float(len(order)), 1, 2)

        return System(name, "x", decode)

    async def decode() -> Mapping[str, Times]:
        order.clear()
        told.clear()
        parts = Parts(tmp_path, "peers", {})
        return await decode_all([system(name) for name in "abc"], PROMPTS, 2, parts, told.append)

    told: list[str] = []
    with pytest.raises(Broken):
        await decode()
    assert "".join(order) == "abc" + "abc" + "bac" + "c"
    breaks_at = None
    found = await decode()
    assert "".join(order) == "abc" + "cab" + "acb", "warmed up, and the turn that was broken off as a whole"
    assert told[3] == "repeat 2 of 2, prompt 1 of 2: c, x"
    assert [each.tokens for each in found["a, x"].replies] == [(4, 7), (8, 7), (5, 7), (7, 7)]
    assert found["a, x"].replies[0] == Decoded((4, 7), 4.0, 1, 2)
    again = await decode()
    assert order == []
    assert {key: list(each.replies) for key, each in again.items()} == {
        key: list(each.replies) for key, each in found.items()
    }


def small(model: Path, **changes: Any) -> PeerSettings:
    settings = PeerSettings(
        str(model),
        [Prompt(str(number), "all", f"the code is K-0417, {number} one two") for number in range(2)],
        ("float32",),
        DrafterConfig(),
        "suffix",
        new_tokens=12,
        prompt_tokens=48,
        repeats=2,
        at_once=3,
        batches=2,
        threads=1,
        assistant_layers=(0,),
        llama=False,
    )
    return replace(settings, **changes)


async def test_a_study_that_was_broken_off_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two prompts twice, plain and drafted, then two batches of one, three and three sessions, after a warm-up each."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    fake = FakeStack()
    monkeypatch.setattr(peers_own, "running", fake.running)
    monkeypatch.setattr(peers_own, "AsyncClient", fake.client)

    async def study(**changes: Any) -> Report:
        fake.asked.clear()
        return await study_peers(small(model, **changes), tmp_path, lambda _: None)

    turns, batch = 2 * (1 + 2 * 2), 1 + 3 + 3
    fake.breaks_at = turns + 2 * batch + 1
    with pytest.raises(Broken):
        await study()
    assert sorted(each.stem for each in (tmp_path / "parts/peers").iterdir()) == [
        *("0-0", "0-1", "1-0", "1-1"),
        "together-float32-1",
    ]
    assert "goes on" not in capsys.readouterr().err
    fake.breaks_at = None
    report = await study()
    assert len(fake.asked) == 2 * batch, "warming up and the last batch"
    assert "study peers goes on: 5 of 6 turns" in capsys.readouterr().err
    assert report.extra["runs"] == 2
    assert sum("in 2 runs" in note for note in report.notes) == 1
    assert {"system", "dtype", "tokens_per_s", "ms_per_token", "equal_to_own_plain"} <= report.rows[0].keys()
    again = await study()
    assert (fake.asked, again.rows, again.extra) == ([], report.rows, report.extra)
    assert "study peers measures nothing: 6 of 6 turns" in capsys.readouterr().err
    more = await study(repeats=3, batches=3)
    assert len(fake.asked) == 2 * (1 + 2) + 2 * batch, "more of them go on from fewer"
    assert more.extra["runs"] == 3
    await study(new_tokens=8)
    assert len(fake.asked) == turns + 3 * batch, "another length does not"


async def test_replies_that_do_not_fit_the_context_are_refused_at_once(model: Path) -> None:
    with pytest.raises(InvalidField, match=r"--tokens: got 100000, allowed: at most \d+, for \d+ tokens with the"):
        await study_peers(small(model, new_tokens=100_000), None, lambda _: pytest.fail("something is loaded"))


async def test_one_prompt_tells_nothing_of_others(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStack()
    monkeypatch.setattr(peers_own, "running", fake.running)
    monkeypatch.setattr(peers_own, "AsyncClient", fake.client)
    one = [Prompt("1", "all", "one two")]
    for repeats in (1, 2):
        settings = small(model, prompts=one, repeats=repeats, assistant_layers=())
        report = await study_peers(settings, tmp_path, lambda _: None)
        report.write(tmp_path)
        assert [(row["low"], row["high"], row["prompts"]) for row in report.rows] == [(None, None, 1)] * 4
        assert all(row["tokens_per_s"] > 0 for row in report.rows)
        assert {each["low_prompts"] for each in report.extra["ratios"]} == ({None} if repeats == 2 else set())
        assert not any("other prompts" in note for note in report.notes if " over " in note)


def test_equal_replies_and_near_ties_are_counted() -> None:
    class Told:
        def near_tie(self, context: list[int], ours: int, theirs: int, params: object) -> bool:
            asked.append((list(context), ours, theirs))
            return ours == 2

    asked: list[tuple[list[int], int, int]] = []
    own = [reply(1.0, 1, 2, 0), reply(1.0, 1, 3), reply(1.0, 1, 3), reply(1.0, 1, 3)]
    theirs = [reply(1.0, 1, 2), reply(1.0, 1, 2), reply(1.0, 4, 3), reply(1.0, 1, 3, 5)]
    prompts = [[10], [11], [12], [13]]
    eos = frozenset({0})
    assert compared(theirs, own, prompts, eos, Told()) == Equal(1, 1, 2)  # type: ignore[arg-type]
    assert asked == [([11, 1], 2, 3), ([12], 4, 1), ([13, 1, 3], 5, 0)]
    assert compared(theirs, own, prompts, eos, None) == Equal(1, None, None)


def test_rows_of_a_runner_are_those_of_transformers(model: Path) -> None:
    ours = RunnerRows(load_runner(ModelSpec(str(model), dtype="float32"), 256, measure_s=0))
    bare = BareModel(model, "float32")
    for tokens in PROMPTS:
        torch.testing.assert_close(ours.row(tokens), bare.row(tokens), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.row_cached(tokens), bare.row_cached(tokens), rtol=1e-4, atol=1e-4)
    best, second = bare.row(PROMPTS[0]).topk(2).indices.tolist()
    judge = Judge(ours)
    params = SimpleNamespace(greedy=True)
    assert judge.near_tie(PROMPTS[0], best, best, params)  # type: ignore[arg-type]
    assert not judge.near_tie(PROMPTS[0], best, second, params)  # type: ignore[arg-type]


async def test_transformers_gives_the_same_tokens_whatever_it_takes_candidates_from(
    model: Path, tmp_path: Path
) -> None:
    assistant = truncated_model(model, (0,), tmp_path)
    systems = transformers_systems({"float32": BareModel(model, "float32")}, assistant, "cpu", 12)
    assert [system.key for system in systems] == [
        "transformers generate, float32",
        "transformers assisted, float32",
        "transformers prompt lookup, float32",
    ]
    for prompt in PROMPTS:
        plain, assisted, lookup = [await system.decode(prompt) for system in systems]
        assert len(plain.tokens) == 12
        assert plain.tokens == assisted.tokens == lookup.tokens
        assert plain.timed == 11
        assert 0 < assisted.timed <= 11
        assert 0 < lookup.timed <= 11


def test_the_report_compares_with_every_base_and_judges_the_best() -> None:
    outcomes = [
        outcome("paceline plain", "float32", 8.0, 8.0, 8.0, 8.0),
        outcome("paceline drafted", "float32", 4.0, 4.0, 4.0, 4.0, faults=0),
        outcome("paceline drafted", "int8", 2.0, 2.0, 2.0, 2.0, faults=1),
        outcome("paceline drafted", "int4", 1.0, 1.0, 1.0, 1.0, faults=0),
        outcome("transformers generate", "float32", 9.0, 9.0, 9.0, 9.0),
        outcome("llama.cpp plain", "Q4_1", 1.5, 1.5, 1.5, 1.5),
    ]
    found = ratios(outcomes)
    assert len(found) == 3 * (len(outcomes) - 1)
    table = {(row["system"], row["dtype"]): row for row in rows(outcomes, found)}
    int4 = table["paceline drafted", "int4"]
    assert (int4["over_own_float32"], int4["over_transformers"], int4["over_llama_cpp"]) == pytest.approx((8, 9, 1.5))
    assert int4["tokens_per_s"] == pytest.approx(1)
    assert int4["ms_per_token"] == pytest.approx(1000)
    assert table["paceline plain", "float32"]["over_own_float32"] is None
    together = [{"system": "paceline drafted", "dtype": "int4", "ratio": 2.6, "low": 2.4, "high": 2.8}]
    bars = judged(outcomes, found, together)
    assert [met for _, met in bars] == [True, True, False, True, False, True]
    assert (
        "drafted over llama.cpp plain, best paceline drafted, int4: 1.50 (1.50 to 1.50), at least 1: met" in bars[0][0]
    )
    assert "at least 2.5: missed" in bars[2][0]
    assert "int8, drafted replies that differ from plain ones and are no near-tie: 1" in bars[4][0]
    assert [words for words, _ in judged(outcomes[:2], ratios(outcomes[:2]), ())] == [
        "bar: float32, drafted replies that differ from plain ones and are no near-tie: 0, at most 0: met"
    ]


def test_llama_cpp_is_skipped_with_the_name_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_llama, "MODULE", "a_module_that_is_nowhere")
    with llama_peer("tiny", 1, 64, 8, lambda _: None) as peer:
        assert peer.systems == []
        assert peer.skipped == ["llama.cpp is skipped: it comes with the extra [peers], pip install 'paceline[peers]'"]


def test_llama_cpp_is_skipped_for_a_model_without_a_gguf_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_llama, "MODULE", "json")
    with llama_peer("./folder", 1, 64, 8, lambda _: None) as peer:
        assert peer.systems == []
        assert peer.skipped[0].startswith("llama.cpp is skipped: ./folder has no GGUF file")


async def test_llama_cpps_server_is_asked_by_ids_and_timed_by_itself() -> None:
    asked: list[dict[str, object]] = []

    class Completion(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = {"tokens": [7, 8, 9], "timings": {"predicted_ms": 30.0, "predicted_n": 3}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Completion)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        system = peers_llama._system("llama.cpp plain", "Q4_1", f"http://127.0.0.1:{server.server_port}", 3)
        decoded = await system.decode([1, 2])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert (decoded.tokens, decoded.per_token_s) == ((7, 8, 9), 0.015)
    assert (asked[0]["prompt"], asked[0]["n_predict"], asked[0]["temperature"]) == ([1, 2], 3, 0.0)


async def test_a_format_whose_stack_does_not_start_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def running(config: StackConfig) -> AsyncIterator[SimpleNamespace]:
        if config.target.dtype != "float32":
            raise RuntimeError("target did not start: no kernel")
        yield SimpleNamespace(address="127.0.0.1:1")

    monkeypatch.setattr(peers_own, "running", running)
    settings = OwnSettings("model", lambda dtype: DrafterConfig(), 8, 1, 1, 2)
    async with own_stacks(settings, ("float32", "bfloat16"), lambda _: None) as (found, skipped):
        assert [each.dtype for each in found] == ["float32"]
        assert [system.key for each in found for system in each.systems()] == [
            "paceline plain, float32",
            "paceline drafted, float32",
        ]
        assert skipped == ["bfloat16 is skipped: target did not start: no kernel"]
    with pytest.raises(RuntimeError, match="no kernel"):
        async with own_stacks(settings, ("bfloat16", "float32"), lambda _: None):
            pass


async def test_a_small_run_leaves_a_report(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    report = await study_peers(small(model), tmp_path, lambda _: None)
    report.write(tmp_path)
    written = json.loads((tmp_path / "peers.json").read_text())
    table = written["results"]
    assert [row["system"] for row in table] == [
        "paceline plain",
        "paceline drafted",
        "transformers generate",
        "transformers assisted",
        "transformers prompt lookup",
    ]
    assert all(row["tokens_per_s"] > 0 and row["ms_per_token"] > 0 for row in table)
    assert all(row["equal_to_own_plain"] + (row["near_ties"] or 0) == 2 for row in table), "greedy, the same weights"
    assert {each["over"] for each in written["ratios"]} == {"own_float32", "transformers"}
    assert [(each["system"], each["sessions"]) for each in written["at_once"]] == [
        ("paceline plain", 3),
        ("paceline drafted", 3),
    ]
    assert (tmp_path / "peers.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "int8"), "--dtype: got 'int8', allowed: float32 among them"),
        (("--tokens", "3"), "--tokens: got 3, allowed: 4 to 100000"),
        (("--repeats", "0"), "--repeats: got 0, allowed: 1 to 1000"),
        (("--at-once", "1"), "--at-once: got 1, allowed: 2 to 256"),
        (("--at-once", "257"), "--at-once: got 257, allowed: 2 to 256"),
        (("--drafter", "suffix", "--drafter-dtype", "int8"), "--drafter-dtype: got 'int8', allowed: absent"),
        (("--prompts", "none"), "--prompts: got 'none', allowed: a file of JSON lines"),
        (("--assistant-layers", "x"), "--assistant-layers: got 'x', allowed: layers such as 0-9,20-29"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}')
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["study", "peers", "--prompts", str(tmp_path / "p.jsonl"), *options])
    with pytest.raises(InvalidField) as refused:
        run_peers(args, lambda stage: None)
    assert said in str(refused.value)
