"""The selection study: its sums against enumeration and against the drafter it stands for."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import DraftOptions, Want
from paceline.errors import InvalidField
from paceline.runtime.models import ModelSpec
from paceline.runtime.toy import ToyRunner
from paceline.runtime.transformers_runner import load_runner
from paceline.speculation.modes import Proposal, Selection
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.study.acceptance import expected_accepted, walked
from paceline.study.draft_source import ModelSource, SuffixSource
from paceline.study.intervals import ratio_interval
from paceline.study.parts import Parts
from paceline.study.replay import replay
from paceline.study.reply import plain_replies
from paceline.study.selection import RULES, Pair, SelectionSettings, Sources
from paceline.study.selection_report import PairSums, pair_rows
from paceline.study.selection_sums import first_tokens
from paceline.study.truncated import truncated_model
from support.drafting import grown
from support.tiny import tiny_model

TABLE = np.random.default_rng(1).dirichlet(np.full(6, 0.5), size=6)
SETTINGS = SelectionSettings(budgets=(1, 2, 4), temperatures=(0.0, 1.0), stretch=6, contexts=3, max_depth=4, timed=2)


def row_after(token: int) -> Row:
    return Row.from_dense(TABLE[token])


def test_expected_acceptance_is_the_mean_walk() -> None:
    tree = DraftTree.build([1, 2, 3, 0, 1], [-1, -1, 0, 2, 1])
    chance = lambda path: TABLE[(4, *path)[-2], path[-1]]  # noqa: E731  # the context ends with token 4
    mean = 0.0
    for reply in product(range(6), repeat=3):
        weight = np.prod([TABLE[a, b] for a, b in zip((4, *reply), reply, strict=False)])
        mean += weight * len(walked(tree, list(reply)))
    assert expected_accepted(tree, chance) == pytest.approx(mean, abs=1e-12)


def test_first_tokens_weigh_as_their_row() -> None:
    row = row_after(2)
    found = first_tokens(row, 3, np.random.default_rng(0))
    assert len(found.weights) == 4
    assert sum(found.weights.values()) == pytest.approx(1.0)
    assert found.enumerated == pytest.approx(np.sort(row.probs)[::-1][:3].sum())
    assert first_tokens(Row.one_hot(3), 3, np.random.default_rng(0)).weights == {3: 1.0}


def test_a_replay_with_perfect_trees_emits_a_tree_a_round() -> None:
    reply = [token % 5 for token in range(20)]
    tree_at = lambda at: DraftTree.build(reply[at : at + 3], [-1, 0, 1], [-0.1] * 3)  # noqa: E731
    row_at = lambda at: Row.one_hot(reply[at])  # noqa: E731
    draft = replay(Selection.DRAFT, 3, reply, 12, 3, tree_at, row_at)
    assert (draft.rounds, draft.tokens) == (3, 12)
    first = replay(Selection.DRAW_FIRST, 3, reply, 12, 3, tree_at, row_at)
    assert (first.rounds, first.tokens, first.nodes) == (3, 12, 9)
    kept = replay(Selection.RETAIN, 3, reply, 12, 3, tree_at, row_at)
    assert (kept.rounds, kept.tokens, kept.kept) == (4, 12, 3)


def test_a_grown_tree_is_the_model_proposers(tmp_path: Path) -> None:
    runner = load_runner(ModelSpec(str(tiny_model(tmp_path)), dtype="float32"), 1024, measure_s=0)
    eos = frozenset({7})
    context = [3, 9, 27, 5, 11]
    for temperature in (0.0, 0.7):
        params = SamplingParams(temperature=temperature)
        proposer = ModelProposer(runner, "", max_depth=4, width=3, step_tokens=256, min_path_prob=0.0)
        options = DraftOptions(Proposal.RANKED, 1.0, params, eos, 64, learn=False)
        proposer.open(0, np.asarray(context, dtype=np.int32), len(context), options)
        (theirs,) = grown(proposer, Want(0, 12))
        proposer.close(0)
        source = ModelSource("tiny", runner, eos, 4, 3)
        source.tree([3, 9, 1], 5, params)  # a context that shares two tokens
        ours = source.tree(context, 12, params)
        assert theirs is not None
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.parents.tolist() == theirs.parents.tolist()


def test_a_suffix_source_answers_for_any_context() -> None:
    source = SuffixSource(6, frozenset(), 4)
    text = [1, 2, 3, 1, 2, 3, 1, 2]
    again = SuffixSource(6, frozenset(), 4).tree(text, 4, SamplingParams())
    source.tree(text[:5], 4, SamplingParams())
    assert source.tree(text, 4, SamplingParams()).tokens.tolist() == again.tokens.tolist() == [3, 1, 2, 3]
    source.tree([5, 5, 5], 4, SamplingParams())
    assert source.tree(text, 4, SamplingParams()).tokens.tolist() == again.tokens.tolist()


def test_a_truncated_model_has_the_layers_that_stay(tmp_path: Path) -> None:
    whole = tiny_model(tmp_path / "whole", num_hidden_layers=3, tie_word_embeddings=True)
    folder = truncated_model(whole, [0, 2], tmp_path / "cache")
    runner = load_runner(ModelSpec(str(folder), dtype="float32"), 64, measure_s=0)
    assert runner.info.vocab_size == 64
    assert truncated_model(whole, [0, 2], tmp_path / "cache") == folder
    assert truncated_model(whole, [0, 1], tmp_path / "cache") != folder
    with pytest.raises(InvalidField, match="layers"):
        truncated_model(whole, [2, 3], tmp_path / "cache")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pair_is_measured_exactly(temperature: float) -> None:
    runner = ToyRunner(TABLE)
    params = SETTINGS.params(temperature)
    prompt = [0, 1, 2, 3, 4, 5, 0, 1, 2]
    (reply,) = plain_replies(runner, [prompt], params, SETTINGS.new_tokens)
    drafter = ToyRunner(0.5 * TABLE + 0.5 / 6)
    sources = Sources(ModelSource("m", drafter, frozenset(), 4, 8), ModelSource("m", drafter, frozenset(), 3, 8))
    pair = Pair(runner, sources, SETTINGS, temperature)
    sums = pair.measure(prompt, reply, 0)
    assert sums == pair.measure(prompt, reply, 0)
    pair.close()
    assert sums["contexts"] == 3
    (row,) = [
        row
        for row in pair_rows(
            PairSums("toy", "m", temperature, [sums], dict.fromkeys((1, 2, 3, 4, 6, 12), 1.0), runner.costs),
            (1, 2, 4),
            RULES,
        )
        if (row["rule"], row["budget"]) == ("draw_first", 1)
    ]
    assert (row["expected_accepted"], row["mean_nodes"], row["contexts"]) == (1.0, 1.0, 3)
    exact = {rule: np.asarray(sums["exact"][rule]) for rule in RULES}
    accepted = {rule: exact[rule][:, 1] for rule in RULES}
    assert (accepted[Selection.RERANK] >= accepted[Selection.DRAFT] - 1e-9).all()
    assert (accepted[Selection.DRAW_FIRST] >= accepted[Selection.RERANK] - 1e-9).all()


def test_parts_of_other_settings_do_not_count(tmp_path: Path) -> None:
    parts = Parts(tmp_path, "s", {"a": 1})
    assert parts.made("k", lambda: [1.5]) == [1.5]
    assert Parts(tmp_path, "s", {"a": 1}).get("k") == [1.5]
    assert Parts(tmp_path, "s", {"a": 2}).get("k") is None
    (tmp_path / "parts/s/k.json").write_text("{")
    assert parts.get("k") is None


def test_an_interval_over_prompts() -> None:
    same = ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (same.mean, same.low, same.high) == pytest.approx((2.0, 2.0, 2.0))
    wide = ratio_interval([1.0, 2.0, 6.0], [1.0, 1.0, 1.0])
    assert wide.low < wide.mean == 3.0 < wide.high
    assert np.isnan(ratio_interval([1.0], [1.0]).low)
