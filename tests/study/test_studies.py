"""The studies: their arithmetic, and a small run of each that the suite can afford."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import InvalidField
from paceline.prompt_file import Prompt, chat_tokens, load_prompts
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import load_tokenizer
from paceline.study.equality import EqualitySettings, study_equality
from paceline.study.overhead import study_overhead
from paceline.study.quality import QualitySettings, read, study_quality
from paceline.study.ratios import interleaved, pair_in_turn, percentiles, ratio_of
from paceline.study.report import Report
from support.oracle import Oracle, runner_of
from support.tiny import save_tokenizer, tiny_model

MODEL = "smollm2-135m-instruct"
PROMPTS = [
    Prompt("1", "copy", "Repeat this list three times: red, green, blue, red, green, blue."),
    Prompt("2", "qa", "What is the capital of France, and why is it famous?"),
]


def ignore(_: str) -> None:
    pass


def test_pairs_run_in_the_order_a_b_b_a() -> None:
    order: list[str] = []

    def timer(name: str) -> float:
        order.append(name)
        return 1.0

    interleaved(lambda _: timer("a"), lambda _: timer("b"), 4)
    assert "".join(order) == "abbaabba"


def test_a_ratio_is_above_1_where_ours_is_faster() -> None:
    ratio = ratio_of([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.8, 2.0])
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    spread = ratio_of([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0])
    assert spread.mean == pytest.approx(24**0.25)
    assert spread.low < spread.mean < spread.high
    with pytest.raises(ValueError, match="two pairs"):
        ratio_of([1.0], [1.0])


def test_a_ratio_over_things_as_they_are_leaves_the_spread_between_them_out() -> None:
    ours, base = [1.0] * 6, [1.0, 2.0, 4.0, 1.1, 2.2, 4.4]
    every = ratio_of(ours, base)
    each = ratio_of(ours, base, [0, 1, 2, 0, 1, 2])
    assert each.mean == every.mean
    assert every.low < 1.5 < 1.9 < each.low < each.mean < each.high < 2.4 < every.high
    with pytest.raises(ValueError, match="two pairs of one thing"):
        ratio_of([1.0, 1.0], [1.0, 2.0], [0, 1])


async def test_a_cycle_turns_the_order_over() -> None:
    order: list[str] = []

    async def timer(name: str, pair: int) -> str:
        order.append(name)
        return f"{name}{pair}"

    for pair in range(4):
        found = await pair_in_turn(lambda pair: timer("a", pair), lambda pair: timer("b", pair), pair, cycle=2)
        assert found == (f"a{pair}", f"b{pair}"), "whichever came first"
    assert "".join(order) == "abbabaab"


def test_percentiles_are_values_that_occurred() -> None:
    assert dict(percentiles([5.0, 1.0, 2.0, 4.0, 3.0])) == {50: 3.0, 90: 5.0, 99: 5.0}


def test_prompt_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [{"prompt": "a", "category": "x", "id": 7}, {"prompt": "b", "category": "x"}, {"prompt": "c"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert [prompt.text for prompt in load_prompts(path)] == ["a", "b", "c"]
    assert load_prompts(path, 1) == [Prompt("7", "x", "a"), Prompt("3", "all", "c")]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"prompt": 3}', '{"prompt": ""}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(InvalidField, match="line 2"):
        load_prompts(path)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="--prompts"):
        load_prompts(tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidField, match="at least one"):
        load_prompts(tmp_path / "empty")


def test_reports_are_written_as_json_and_as_a_table(tmp_path: Path) -> None:
    Report("demo", {"a": 1}, [{"x": 1.23456, "y": "z"}], notes=["a note"]).write(tmp_path)
    written = json.loads((tmp_path / "demo.json").read_text())
    assert written["results"] == [{"x": 1.23456, "y": "z"}]
    assert written["machine"]["versions"]["torch"]
    assert "| 1.235 | z |" in (tmp_path / "demo.md").read_text()


@pytest.mark.model
@pytest.mark.parametrize("limit", [40, 60, 500])
def test_long_prompts_are_cut_within_the_turn(limit: int) -> None:
    tokenizer = load_tokenizer(default_store().resolve(MODEL))
    ids = chat_tokens(tokenizer, "one two three four five " * 20, limit)
    assert len(ids) <= limit
    assert ids[-3:] == tokenizer.apply_chat([("user", "x")])[-3:], "the assistant's turn is still opened"


async def test_overhead_of_a_round() -> None:
    report = await study_overhead(200, ignore)
    drafted, plain = report.rows
    assert drafted["accepted"] > 0
    assert plain["accepted"] == 0
    assert drafted["p50_ms"] > 0
    empty, *filled = report.extra["store"]
    assert [row["tokens"] for row in (empty, *filled)] == [0, 20_000, 100_000]
    assert all(0 < row["lookup_us"] < row["tree_us"] for row in filled)
    assert all(row["nodes"] > empty["nodes"] and 100 < row["bytes_per_token"] < 1000 for row in filled)
    assert "bytes" in report.notes[-1]


@pytest.mark.model
async def test_drafted_replies_equal_plain_ones() -> None:
    """Greedy against transformers' generate, sampled against plain decoding, by three drafters, alone and together."""
    settings = EqualitySettings(MODEL, PROMPTS, new_tokens=14, sampled_prompts=1, company=2)
    report = await study_equality(settings, ignore)
    assert [row["faults"] for row in report.rows] == [0] * len(report.rows)
    assert {row["drafter"] for row in report.rows} == {"suffix", "oracle", "wrong"}
    rounds = {row["drafter"]: row["tokens_per_round"] for row in report.rows if row["temperature"] == 0.0}
    assert rounds["oracle"] > 2 > rounds["wrong"] == 1.0


def test_a_coarser_format_is_read_beside_float32(tmp_path: Path) -> None:
    """A tiny model and a text of its own alphabet: float32 beside itself costs nothing, bfloat16 a little."""
    folder = save_tokenizer(tiny_model(tmp_path, vocab=400))
    prompts = [Prompt(str(number), "all", f"the code is K-{number:04}") for number in range(60)]
    settings = QualitySettings(str(folder), prompts, ["bfloat16"], tokens=600)
    report = study_quality(settings, ignore)
    exact, coarse = report.rows
    assert (exact["dtype"], exact["ratio"], exact["low"], exact["high"], exact["agreement"]) == ("float32", 1, 1, 1, 1)
    assert coarse["dtype"] == "bfloat16"
    assert 0.9 < coarse["low"] <= coarse["ratio"] <= coarse["high"] < 1.1
    assert 0.8 < coarse["agreement"] < 1
    with pytest.raises(InvalidField, match=r"--prompts: got '[0-9]+ tokens', allowed: at least 512 tokens"):
        study_quality(QualitySettings(str(folder), prompts[:2], []), ignore)


def test_perplexity_is_that_of_the_model_itself(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    window = np.random.default_rng(0).integers(0, 64, (2, 20)).astype(np.int32)
    found = read(runner_of(folder), window, lambda number: None)
    for number, tokens in enumerate(window.tolist()):
        rows = Oracle(folder).rows(tokens, 20)
        own = torch.nn.functional.cross_entropy(rows[:-1], torch.tensor(tokens[1:]), reduction="none")
        assert found.losses[number] == pytest.approx(own.numpy(), abs=1e-3)
        assert found.best[number].tolist() == rows.argmax(-1).tolist()
