"""The packed pass: every node's row equals a fresh forward of its path, whatever shares the pass."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.runtime.costs import PassCosts
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.transformers_runner import load_runner
from paceline.speculation.tree import DraftTree
from support.oracle import DEVICES, TOLERANCE, Oracle, prefill, runner_of, worst
from support.tiny import tiny_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3"])
def test_every_node_equals_a_fresh_forward(kind: str, device: str, tmp_path: Path) -> None:
    window = {"sliding_window": 64} if kind in ("mistral", "gemma3") else {}
    folder = tiny_model(tmp_path, kind, **window)
    runner, oracle = runner_of(folder, device), Oracle(folder)
    prefix = [3, 1, 4, 1, 5, 9, 2, 6]
    sequence = prefill(runner, prefix)
    tree = DraftTree.build([7, 8, 9, 10, 11, 12, 13], [-1, -1, 0, 0, 1, 3, 5])
    rows = runner.execute(PassPlan((Segment.verification(sequence, 30, tree),)))
    assert worst(rows.logits(0, 0), oracle.row([*prefix, 30])) < TOLERANCE
    for node in range(len(tree)):
        path = [*prefix, 30, *tree.path_tokens(node)]
        assert worst(rows.logits(0, node + 1), oracle.row(path)) < TOLERANCE, path


def test_sessions_of_different_kinds_share_a_pass(llama: Path) -> None:
    runner, oracle = runner_of(llama), Oracle(llama)
    long, short = prefill(runner, list(range(40))), prefill(runner, [5, 6])
    fresh = runner.kv.open()
    tree = DraftTree.build([1, 2, 3], [-1, -1, 1])
    plan = PassPlan(
        (
            Segment.chain(fresh, [9, 8, 7], last_row=True),
            Segment.verification(long, 50, tree),
            Segment.chain(short, [11], last_row=True),
        )
    )
    rows = runner.execute(plan)
    assert worst(rows.logits(0, 2), oracle.row([9, 8, 7])) < TOLERANCE
    assert worst(rows.logits(1, 3), oracle.row([*range(40), 50, 2, 3])) < TOLERANCE
    assert worst(rows.logits(2, 0), oracle.row([5, 6, 11])) < TOLERANCE


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_accepted_path_with_gaps_is_compacted(llama: Path, order: tuple[int, ...]) -> None:
    """Three children a level, the right one at every place in turn, over several rounds (case A1)."""
    runner, oracle = runner_of(llama), Oracle(llama)
    context = [2, 7, 1]
    sequence = prefill(runner, context[:-1])
    while len(context) < 27:
        right = [int(token) for token in np.random.default_rng(len(context)).integers(0, 64, 4)]
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        above = -1
        for level, token in enumerate(right):
            siblings = [(token + 1) % 64, (token + 2) % 64, token]
            first = len(tokens)
            tokens += [siblings[place] for place in order]
            parents += [above] * 3
            above = first + order.index(2)
            if level < len(context) % 5:
                path.append(above)
        tree = DraftTree.build(tokens, parents)
        runner.execute(PassPlan((Segment.verification(sequence, context[-1], tree),)))
        runner.kv.keep(sequence, [0, *(node + 1 for node in path)])
        runner.kv.check_integrity()
        context += [int(tree.tokens[node]) for node in path] + [33]
        rows = runner.execute(PassPlan((Segment.chain(sequence, [context[-1]], last_row=True),)))
        assert worst(rows.logits(0, 0), oracle.row(context)) < TOLERANCE


def test_a_tree_grown_over_passes_equals_one_pass(llama: Path) -> None:
    runner = runner_of(llama)
    sequence = prefill(runner, [1, 2, 3])
    parents = np.array([-1, -1, 0, 0, 2], dtype=np.int32)
    tokens = np.array([5, 6, 7, 8, 9], dtype=np.int32)
    whole = runner.execute(PassPlan((Segment(sequence, tokens, parents, tuple(range(5))),)))
    for first, last in ((0, 2), (2, 4), (4, 5)):
        part = Segment(sequence, tokens[first:last], parents[:last], tuple(range(first, last)))
        rows = runner.execute(PassPlan((part,)))
        for node in range(first, last):
            assert worst(rows.logits(0, node), whole.logits(0, node).cpu()) < TOLERANCE


def test_chunked_prefill_equals_one_chunk(llama: Path) -> None:
    runner, oracle = runner_of(llama), Oracle(llama)
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, 64, 50)]
    sequence = runner.kv.open()
    for start in range(0, 50, 7):
        chunk = tokens[start : start + 7]
        rows = runner.execute(PassPlan((Segment.chain(sequence, chunk, last_row=True),)))
        runner.kv.keep(sequence, range(len(chunk)))
    assert worst(rows.logits(0, len(chunk) - 1), oracle.row(tokens)) < TOLERANCE


def test_scattered_pages_give_the_same_rows(llama: Path) -> None:
    runner, oracle = runner_of(llama, kv_tokens=96, page_size=4), Oracle(llama)
    first, second = runner.kv.open(), runner.kv.open()
    own: dict[int, list[int]] = {first: [], second: []}
    for token in range(40):
        for sequence in (first, second):
            own[sequence].append((token * 7 + sequence) % 64)
            rows = runner.execute(PassPlan((Segment.chain(sequence, own[sequence][-1:], last_row=True),)))
            runner.kv.keep(sequence, [0])
    assert runner.kv.run(first).start is None, "the pages of two growing sequences interleave"
    assert worst(rows.logits(0, 0), oracle.row(own[second])) < TOLERANCE


def test_a_fork_continues_like_its_origin(llama: Path) -> None:
    runner, oracle = runner_of(llama), Oracle(llama)
    tokens = list(range(1, 22))
    fork = runner.kv.fork(prefill(runner, tokens))
    rows = runner.execute(PassPlan((Segment.chain(fork, [60], last_row=True),)))
    assert worst(rows.logits(0, 0), oracle.row([*tokens, 60])) < TOLERANCE


@pytest.mark.parametrize("padded", [1, 5, 16])
def test_padding_changes_nothing(llama: Path, padded: int) -> None:
    runner, oracle = runner_of(llama), Oracle(llama)
    runner.costs = PassCosts({size: (0.1 if size == padded else 9.0) for size in (1, 2, 3, 5, 16)})
    sequence = prefill(runner, [4, 5])
    rows = runner.execute(PassPlan((Segment.verification(sequence, 6, DraftTree.chain([7, 8])),)))
    assert rows.padded == max(padded, 3)
    assert worst(rows.logits(0, 2), oracle.row([4, 5, 6, 7, 8])) < TOLERANCE
    runner.kv.keep(sequence, range(3))
    rows = runner.execute(PassPlan((Segment.chain(sequence, [9], last_row=True),)))
    assert worst(rows.logits(0, 0), oracle.row([4, 5, 6, 7, 8, 9])) < TOLERANCE


def test_nodes_beyond_the_context_limit_disturb_no_one(tmp_path: Path) -> None:
    """A tree may reach over the end of the context; its rows there mean nothing, the others are right."""
    folder = tiny_model(tmp_path, max_position_embeddings=16)
    runner, oracle = runner_of(folder), Oracle(folder)
    context = list(range(14))
    sequence, other = prefill(runner, context), prefill(runner, [1, 2])
    tree = Segment.verification(sequence, 14, DraftTree.chain([15, 16, 17, 18]))
    rows = runner.execute(PassPlan((tree, Segment.chain(other, [3], last_row=True))))
    assert worst(rows.logits(0, 0), oracle.row([*context, 14])) < TOLERANCE
    assert worst(rows.logits(0, 1), oracle.row([*context, 14, 15])) < TOLERANCE
    assert worst(rows.logits(1, 0), oracle.row([1, 2, 3])) < TOLERANCE


def test_a_failed_pass_leaves_the_kv_as_it_was(llama: Path) -> None:
    runner, oracle = runner_of(llama, kv_tokens=32), Oracle(llama)
    sequence, other = prefill(runner, [1, 2, 3]), prefill(runner, [4])
    with pytest.raises(Exception, match="pages"):
        runner.execute(
            PassPlan((Segment.chain(sequence, [9], last_row=True), Segment.chain(other, [5] * 60, last_row=True)))
        )
    runner.kv.check_integrity()
    rows = runner.execute(PassPlan((Segment.chain(sequence, [7], last_row=True),)))
    assert worst(rows.logits(0, 0), oracle.row([1, 2, 3, 7])) < TOLERANCE


def test_bfloat16_stays_near_float32(llama: Path) -> None:
    """bfloat16 has 8 bits: rows may differ by some hundredths of their spread, not more."""
    full = runner_of(llama)
    half = load_runner(ModelSpec(str(llama), dtype="bfloat16"), 1024, measure_s=0.0)
    assert half.info.dtype == "bfloat16"
    tree = DraftTree.build([7, 8, 9], [-1, 0, -1])
    rows = [
        runner.execute(PassPlan((Segment.verification(prefill(runner, [1, 2, 3]), 4, tree),)))
        for runner in (full, half)
    ]
    for node in range(4):
        reference = torch.softmax(rows[0].logits(0, node), 0)
        assert float((torch.softmax(rows[1].logits(0, node), 0) - reference).abs().sum()) / 2 < 0.05
