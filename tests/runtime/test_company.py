"""Sessions that share passes: each has the rows it has alone, whatever the others do (case A5)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.runtime.kv import OutOfPages
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import PassRows
from paceline.runtime.store import default_store
from paceline.runtime.transformers_runner import TransformersRunner, load_runner
from paceline.speculation.tree import DraftTree
from support.oracle import TOLERANCE, Oracle, prefill, runner_of, worst
from support.tiny import tiny_model

VOCAB = 64


class Session:
    """A sequence, its context (the last token has no KV yet), and what it does in the next pass."""

    def __init__(self, runner: TransformersRunner, context: list[int]) -> None:
        self.sequence = runner.kv.open()
        self.context = context
        self.tree = DraftTree.empty()
        self.chunk = 0

    def turn(self, runner: TransformersRunner, random: np.random.Generator) -> Segment:
        committed = runner.kv.length(self.sequence)
        pending = len(self.context) - committed
        self.chunk, self.tree = pending, DraftTree.empty()
        if pending > 1 and random.random() < 0.8:  # still reads its prompt, perhaps not to the end
            self.chunk = int(random.integers(1, pending + 1))
        if pending == 1 and random.random() < 0.8:
            self.tree = random_tree(random)
        if self.chunk == 1 and pending == 1:
            return Segment.verification(self.sequence, self.context[-1], self.tree)
        chunk = self.context[committed : committed + self.chunk]
        return Segment.chain(self.sequence, chunk, last_row=True)

    def accept(self, runner: TransformersRunner, random: np.random.Generator) -> None:
        """Any path of the tree, then a token drawn after it."""
        node, path = -1, []
        while children := np.flatnonzero(self.tree.parents == node).tolist():
            if random.random() < 0.3:
                break
            node = int(random.choice(children))
            path.append(node)
        reached = runner.kv.length(self.sequence) + self.chunk == len(self.context)
        runner.kv.keep(self.sequence, [*range(self.chunk), *(self.chunk + each for each in path)])
        if reached:
            self.context += [int(self.tree.tokens[each]) for each in path] + [int(random.integers(VOCAB))]


def random_tree(random: np.random.Generator) -> DraftTree:
    """Up to ten nodes; siblings have different tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(int(random.integers(1, 11))):
        parent = int(random.integers(-1, node))
        taken = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        tokens.append(int(random.choice([token for token in range(VOCAB) if token not in taken])))
        parents.append(parent)
    return DraftTree.build(tokens, parents)


def check_rows(session: Session, segment: int, rows: PassRows, oracle: Oracle, committed: int) -> None:
    """Every row against forwards of the paths to the leaves, of which each gives the rows of a whole path."""
    if not len(session.tree):
        path = session.context[: committed + session.chunk]
        assert worst(rows.logits(segment, session.chunk - 1), oracle.row(path)) < TOLERANCE
        return
    parents = session.tree.parents.tolist()
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        tokens = session.context[: committed + 1] + [int(session.tree.tokens[node]) for node in path]
        right = oracle.rows(tokens, len(path) + 1)
        for place, node in enumerate([-1, *path]):
            assert worst(rows.logits(segment, node + 1), right[place]) < TOLERANCE


@pytest.mark.parametrize("seed", range(4))
def test_any_company(tmp_path: Path, seed: int) -> None:
    """Prompts in chunks, plain steps and trees in each pass; sessions come, go and fork, on pages that scatter."""
    random = np.random.default_rng(seed)
    kind = ("llama", "qwen3", "gemma3", "mistral")[seed]
    window = {"sliding_window": 128} if kind in ("mistral", "gemma3") else {}
    folder = tiny_model(tmp_path, kind, vocab=VOCAB, **window)
    runner, oracle = runner_of(folder, kv_tokens=320, page_size=int(random.choice([1, 4, 16]))), Oracle(folder)
    sessions: list[Session] = []
    scattered = 0
    for _ in range(20):
        while len(sessions) < 4:
            sessions.append(Session(runner, random.integers(0, VOCAB, int(random.integers(1, 40))).tolist()))
        plan = PassPlan(tuple(session.turn(runner, random) for session in sessions))
        try:
            rows = runner.execute(plan)
        except OutOfPages:
            runner.kv.release(sessions.pop(0).sequence)
            continue
        scattered += sum(runner.kv.run(session.sequence).start is None for session in sessions)
        for index, session in enumerate(sessions):
            check_rows(session, index, rows, oracle, runner.kv.length(session.sequence))
        for session in sessions:
            session.accept(runner, random)
        runner.kv.check_integrity()
        if random.random() < 0.2:
            gone = sessions.pop(int(random.integers(len(sessions))))
            if random.random() < 0.5 and runner.kv.fits(len(gone.context)):
                copy = Session(runner, list(gone.context))
                runner.kv.release(copy.sequence)
                copy.sequence = runner.kv.fork(gone.sequence)
                sessions.append(copy)
            runner.kv.release(gone.sequence)
    for session in sessions:
        runner.kv.release(session.sequence)
    assert runner.kv.pages_used == 0
    assert scattered, "no session's pages were scattered: the copying path was not tried"


def test_a_session_whose_numbers_overflow_spoils_no_other(tmp_path: Path) -> None:
    """Token 1 has NaN for an embedding: its session's row shows it, its neighbours' rows do not change."""
    folder = tiny_model(tmp_path, vocab=VOCAB)
    oracle = Oracle(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][1] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    runner = runner_of(folder)
    good, bad, also_good = prefill(runner, [5, 6]), prefill(runner, [7]), prefill(runner, [8, 9])
    for _ in range(2):
        plan = PassPlan(
            tuple(Segment.chain(each, [t], last_row=True) for each, t in ((good, 4), (bad, 1), (also_good, 4)))
        )
        rows = runner.execute(plan)
        assert torch.isnan(rows.logits(1, 0)).any()
        assert worst(rows.logits(0, 0), oracle.row([5, 6, 4])) < TOLERANCE
        assert worst(rows.logits(2, 0), oracle.row([8, 9, 4])) < TOLERANCE
    runner.kv.release(bad)
    again = prefill(runner, [7])  # on the slots that held NaN
    rows = runner.execute(PassPlan((Segment.chain(again, [4], last_row=True),)))
    assert worst(rows.logits(0, 0), oracle.row([7, 4])) < TOLERANCE


def test_two_models_in_two_threads(tmp_path: Path) -> None:
    """A drafter and a target of different shape in one process do not see each other's passes."""
    folders = [
        tiny_model(tmp_path / "large", "qwen3", vocab=VOCAB, num_hidden_layers=3),
        tiny_model(tmp_path / "small", "llama", vocab=VOCAB, num_key_value_heads=1, seed=1),
    ]
    models = [(runner_of(folder), Oracle(folder)) for folder in folders]
    start = threading.Barrier(2)

    def decode(runner: TransformersRunner, oracle: Oracle) -> list[float]:
        context, differences = [1, 2, 3], []
        sequence = prefill(runner, context)
        start.wait(60)
        for token in range(20):
            rows = runner.execute(PassPlan((Segment.chain(sequence, [token], last_row=True),)))
            runner.kv.keep(sequence, [0])
            context.append(token)
            differences.append(worst(rows.logits(0, 0), oracle.row(context)))
        return differences

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(decode, *zip(*models, strict=True)):
            assert len(found) == 20
            assert max(found) < TOLERANCE


def test_models_loaded_at_once(tmp_path: Path) -> None:
    """Loading replaces methods of transformers for its time; all models, and those loaded later, must be whole."""
    tied = [tiny_model(tmp_path / str(index), tie_word_embeddings=True, seed=index) for index in range(4)]
    with ThreadPoolExecutor(4) as threads:
        runners = list(threads.map(runner_of, tied * 2))
    runners.append(runner_of(tied[0]))
    for runner, folder in zip(runners, [*tied, *tied, tied[0]], strict=True):
        sequence = runner.kv.open()
        rows = runner.execute(PassPlan((Segment.chain(sequence, [3, 4], last_row=True),)))
        assert worst(rows.logits(0, 1), Oracle(folder).row([3, 4])) < TOLERANCE


@pytest.mark.model
def test_the_default_model() -> None:
    """A tree and a plain step over prefixes of a real model: 30 layers, an odd number of query heads a KV head."""
    folder = Path(default_store().resolve("smollm2-135m-instruct"))
    runner, oracle = runner_of(folder, kv_tokens=512), Oracle(folder)
    random = np.random.default_rng(0)
    long, short = random.integers(100, 4000, 150).tolist(), random.integers(100, 4000, 9).tolist()
    sequences = prefill(runner, long), prefill(runner, short)
    tree = DraftTree.build([500, 600, 700, 800], [-1, -1, 1, 2])
    plan = PassPlan((Segment.verification(sequences[0], 400, tree), Segment.chain(sequences[1], [300], last_row=True)))
    rows = runner.execute(plan)
    assert worst(rows.logits(0, 1), oracle.row([*long, 400, 500])) < TOLERANCE
    assert worst(rows.logits(0, 4), oracle.row([*long, 400, 600, 700, 800])) < TOLERANCE
    assert worst(rows.logits(1, 0), oracle.row([*short, 300])) < TOLERANCE
    runner.kv.keep(sequences[0], [0, 2, 3])
    rows = runner.execute(PassPlan((Segment.chain(sequences[0], [900], last_row=True),)))
    assert worst(rows.logits(0, 0), oracle.row([*long, 400, 600, 700, 900])) < TOLERANCE


@pytest.mark.model
def test_the_default_model_in_bfloat16() -> None:
    """It passes the check at load, and its rows are those of float32 to the precision of eight bits."""
    folder = default_store().resolve("smollm2-135m-instruct")
    runner = load_runner(ModelSpec(str(folder), dtype="bfloat16", device="cpu"), 256, measure_s=0.0)
    oracle = Oracle(Path(folder))
    sequence = prefill(runner, [504, 1201, 338])
    rows = runner.execute(PassPlan((Segment.verification(sequence, 900, DraftTree.build([700, 800], [-1, -1])),)))
    for node, tail in enumerate(([900], [900, 700], [900, 800])):
        right = torch.softmax(oracle.row([504, 1201, 338, *tail]), 0)
        assert float((torch.softmax(rows.logits(0, node), 0) - right).abs().sum()) / 2 < 0.1
