"""Sample-match: its law by enumeration, and the same tokens as plain decoding under real noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from paceline.speculation.choices import SeededChoices
from paceline.speculation.propose import Candidates, coupled, draft_noise_key
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import best_first
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Walk, verify
from paceline.study.outcomes import ScriptedChoices, law
from speculation.languages import (
    Context,
    Language,
    decode,
    difference,
    language,
    plain,
    random_tree,
    reference,
    rows_of,
)


@pytest.mark.parametrize(("vocab", "horizon", "nodes"), [(2, 4, 6), (3, 3, 5), (4, 3, 9), (5, 2, 12)])
@pytest.mark.parametrize("seed", range(4))
def test_the_law_is_the_targets(vocab: int, horizon: int, nodes: int, seed: int) -> None:
    row = language(vocab, seed)
    draft = lambda context: random_tree(np.random.default_rng([seed, *context]), vocab, nodes)  # noqa: E731
    found = law(lambda choices: decode(row, choices, horizon, draft))
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert difference(found, reference(row, horizon)) < 1e-12


def test_the_law_holds_in_float32_to_its_rounding() -> None:
    row = language(4, 1, np.float32)
    found = law(lambda choices: decode(row, choices, 3, lambda _: random_tree(np.random.default_rng(1), 4, 7)))
    assert difference(found, reference(row, 3)) < 1e-6


def test_a_bonus_drawn_from_the_wrong_row_is_seen() -> None:
    """The token behind a fully accepted path must come from the row at its last node."""
    row = language(3, 5)

    def broken(choices: ScriptedChoices) -> Context:
        tree = DraftTree.chain([int(row(()).token_ids[0])])
        walk = verify(tree, lambda _: row(()), choices, 0)
        return (*walk.tokens, *plain(row, choices, 2))[:2]

    assert difference(law(broken), reference(row, 2)) > 0.01


def test_drawing_again_after_a_rejection_is_seen() -> None:
    """p = (.3 .7), child 0 first: a second draw from p after a rejected one gives (.51 .49), not (.3 .7)."""
    row = Row.from_dense(np.array([0.3, 0.7]))

    def broken(choices: ScriptedChoices) -> int:
        return 0 if choices.draw(row, 0) == 0 else choices.draw(row, 0)

    assert law(broken)[0] == pytest.approx(0.51)
    right = law(lambda choices: verify(DraftTree.chain([0]), lambda _: row, choices, 0).tokens[0])
    assert right == pytest.approx({0: 0.3, 1: 0.7}, abs=1e-12)


def test_a_fully_accepted_chain_draws_its_bonus_from_the_last_row() -> None:
    rows = {ROOT: [1.0, 0.0], 0: [0.0, 1.0], 1: [1.0, 0.0], 2: [0.05, 0.95]}
    found = law(
        lambda choices: (
            verify(DraftTree.chain([0, 1, 0]), lambda node: Row.from_dense(np.array(rows[node])), choices, 0).tokens
        )
    )
    assert found == pytest.approx({(0, 1, 0, 0): 0.05, (0, 1, 0, 1): 0.95}, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(30))
def test_any_tree_gives_the_tokens_of_plain_decoding(temperature: float, seed: int) -> None:
    row = language(5, seed)
    choices = SeededChoices(SamplingParams(temperature=temperature, seed=seed * 7919))
    draft = lambda context: random_tree(np.random.default_rng([seed, *context]), 5, seed % 9)  # noqa: E731
    assert decode(row, choices, 40, draft) == plain(row, choices, 40)


def coupled_draft(row: Language, params: SamplingParams, strength: float) -> Callable[[Context], DraftTree]:
    """Trees of 6 nodes that look at the noise of the very draws they guess."""

    def expand(context: Context) -> Candidates:
        key = draft_noise_key(params, len(context))
        at = row(context)
        return coupled(at.token_ids, np.log(at.probs), key=key, strength=strength, width=3)

    return lambda context: best_first(lambda path: expand((*context, *path)), 6, 3)


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("seed", range(10))
def test_trees_that_know_the_noise_give_the_tokens_of_plain_decoding(strength: float, seed: int) -> None:
    row, drafter = language(5, seed), language(5, seed + 1000)
    params = SamplingParams(temperature=1.0, seed=seed)
    draft = coupled_draft(drafter, params, strength)
    assert decode(row, SeededChoices(params), 40, draft) == plain(row, SeededChoices(params), 40)


def test_a_drafter_equal_to_the_target_is_right_at_strength_1() -> None:
    """Its first child is the target's own draw, so best-first chains of one child are accepted whole."""
    row = language(5, 3)
    for seed in range(50):
        params = SamplingParams(temperature=1.0, seed=seed)
        tokens: Context = ()
        for _ in range(4):
            at, key = row(tokens), draft_noise_key(params, len(tokens))
            best = coupled(at.token_ids, np.log(at.probs), key=key, strength=1.0, width=1)
            tokens += (int(best.tokens[0]),)
        tree = DraftTree.chain(tokens)
        assert verify(tree, rows_of(tree, row, ()), SeededChoices(params), 0).accepted == (0, 1, 2, 3)


@pytest.mark.parametrize("strength", [1.0, 2.0, math.inf])
def test_the_law_over_many_seeds_with_trees_that_know_the_noise(strength: float) -> None:
    """Two tokens of drafted decoding, 5 000 seeds; G-test on at most 9 cells, false alarm 1e-6."""
    row, drafter = language(3, 8), language(3, 9)
    expected = reference(row, 2)
    counts = dict.fromkeys(expected, 0)
    for seed in range(5000):
        params = SamplingParams(temperature=1.0, seed=seed)
        counts[decode(row, SeededChoices(params), 2, coupled_draft(drafter, params, strength))] += 1
    found = stats.power_divergence(
        list(counts.values()), [expected[key] * 5000 for key in counts], lambda_="log-likelihood"
    )
    assert found.pvalue > 1e-6


def test_a_rejected_token_ends_the_count_whatever_follows() -> None:
    """Right, wrong, right, wrong, right: one draft token is accepted."""
    reply = [1, 2, 3, 4, 5, 6]
    walk = verify(
        DraftTree.chain([1, 9, 3, 9, 5]), lambda node: Row.one_hot(reply[node + 1]), SeededChoices(SamplingParams()), 0
    )
    assert walk == Walk(accepted=(0,), tokens=(1, 2))


def test_a_wide_tree_counts_its_path_only() -> None:
    """12 nodes, depth 4: the third root and its first child are right, the row below wants something else."""
    tree = DraftTree.build([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [-1, -1, -1, 2, 2, 0, 0, 1, 4, 4, 8, 8])
    assert tree.depths.max() == 4
    rows = {ROOT: 3, 2: 5, 4: 77}
    walk = verify(tree, lambda node: Row.one_hot(rows[node]), SeededChoices(SamplingParams()), 0)
    assert walk == Walk(accepted=(2, 4), tokens=(3, 5, 77))
    assert walk.drawn == 77


def test_expected_acceptance_is_the_sum_of_path_probabilities() -> None:
    row = language(4, 3)
    tree = random_tree(np.random.default_rng(3), 4, 8)
    at = rows_of(tree, row, ())
    paths = 0.0
    for node in range(len(tree)):
        path = tree.path(node)
        above = [ROOT, *path[:-1]]
        paths += float(np.prod([at(up).prob(int(tree.tokens[down])) for up, down in zip(above, path, strict=True)]))
    found = law(lambda choices: len(verify(tree, at, choices, 0).accepted))
    assert sum(count * probability for count, probability in found.items()) == pytest.approx(paths, abs=1e-12)


@pytest.mark.parametrize("depth", range(1, 7))
def test_a_stop_token_ends_the_walk_wherever_it_falls(depth: int) -> None:
    reply = [4, 1, 2, 9, 3, 5, 6]  # 9 ends a reply
    tree = DraftTree.chain(reply[:depth])
    walk = verify(
        tree,
        lambda node: Row.one_hot(reply[node + 1]),
        SeededChoices(SamplingParams()),
        0,
        stops=lambda token: token == 9,
    )
    assert list(walk.tokens) == reply[: min(depth + 1, 4)]
    assert len(walk.accepted) == min(depth, 4)
    assert walk.drawn == (None if depth >= 4 else walk.tokens[-1])


def test_rows_are_asked_for_lazily_and_once() -> None:
    asked: list[int] = []
    tree = DraftTree.build([1, 2, 3, 4], [-1, -1, 0, 2])

    def row_at(node: int) -> Row:
        asked.append(node)
        return Row.one_hot({-1: 1, 0: 7}[node])

    walk = verify(tree, row_at, SeededChoices(SamplingParams()), 0)
    assert walk == Walk(accepted=(0,), tokens=(1, 7))
    assert asked == [ROOT, 0]
