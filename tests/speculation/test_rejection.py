"""Recursive rejection: exact under the rules of THEORY 3, and each broken rule is seen. One position, every outcome."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rejection import recursion
from paceline.speculation.rows import Row
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import verify
from paceline.study.outcomes import ScriptedChoices, law

TARGET = Row.from_dense(np.array([0.1, 0.6, 0.2, 0.1, 0.0]))
WEIGHTS = np.array([0.4, 0.1, 0.15, 0.15, 0.2])
SEEN = 1e-3  # a bias that is far from rounding


def proposal(weights: np.ndarray = WEIGHTS) -> ProposalRow:
    return ProposalRow(np.arange(len(weights), dtype=np.int32), weights)


def siblings_tree(tokens: list[int], row: ProposalRow | None = None) -> DraftTree:
    return DraftTree.build(tokens, [ROOT] * len(tokens), rows=[row or proposal(), *[None] * len(tokens)])


def emitted(tree: DraftTree, choices: ScriptedChoices, row: Row = TARGET) -> int:
    return verify(tree, lambda _: row, choices, 0, stops=lambda _: True).tokens[0]


def bias(run: Callable[[ScriptedChoices], int], row: Row = TARGET) -> float:
    """Total variation of the emitted token from the target's row."""
    found = law(run)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return 0.5 * sum(abs(found.get(token, 0.0) - row.prob(token)) for token in range(8))


@pytest.mark.parametrize("count", range(1, 6))
def test_drawn_siblings_give_the_targets_law(count: int) -> None:
    drawn = lambda choices: siblings_tree(choices.siblings(proposal(), count))  # noqa: E731
    assert bias(lambda choices: emitted(drawn(choices), choices)) < 1e-15


@pytest.mark.parametrize("count", range(1, 5))
@pytest.mark.parametrize("seed", range(20))
def test_any_two_rows_give_the_targets_law(count: int, seed: int) -> None:
    """Supports that differ, overlap in part or not at all; float32 weights."""
    random = np.random.default_rng(seed)
    probs = random.random(6) * (random.random(6) > 0.4)
    probs[random.integers(6)] += 0.1
    row = Row.from_dense(probs / probs.sum())
    weights = (random.random(6) ** 3 + 1e-3).astype(np.float32)
    kept = np.sort(random.permutation(6)[: int(random.integers(1, 5))]).astype(np.int32)
    drafted = ProposalRow(kept, weights[kept])
    run = lambda choices: emitted(siblings_tree(choices.siblings(drafted, count), drafted), choices, row)  # noqa: E731
    assert bias(run, row) < 1e-12


def test_the_recursion_by_hand() -> None:
    """p = (.5 .3 .2), q = (.25 .5 .25): 1 rejected leaves p = (1 0 0) and q = (.5 - .5)."""
    row, drafted = Row.from_dense(np.array([0.5, 0.3, 0.2])), proposal(np.array([0.25, 0.5, 0.25]))
    accept_probs, residual = recursion(row, drafted, [1, 2])
    assert accept_probs == pytest.approx([0.6, 0.0])
    assert residual.token_ids.tolist() == [0]
    accept_probs, residual = recursion(row, drafted, [1, 0])
    assert accept_probs == pytest.approx([0.6, 1.0])
    assert residual.prob(0) == pytest.approx(1.0)


def test_a_sibling_the_target_rules_out_is_never_accepted() -> None:
    assert recursion(TARGET, proposal(), [4, 0])[0][0] == 0.0


def test_a_residual_emptied_by_rounding_is_the_last_that_was_not() -> None:
    third = np.full(3, 1 / 3)
    row, drafted = Row.from_dense(third), proposal(third.astype(np.float32))
    for siblings in ([0], [1, 2], [2, 1, 0]):
        accept_probs, residual = recursion(row, drafted, siblings)
        assert accept_probs[0] == pytest.approx(1.0)
        assert residual.probs.sum() == pytest.approx(1.0)
    nearly = Row.from_dense(np.array([1.0 - 2**-53, 2**-53]))
    accept_probs, residual = recursion(nearly, proposal(np.array([1.0, 1e-30])), [0, 1])
    assert np.isfinite(accept_probs).all()
    assert residual.probs.sum() == pytest.approx(1.0)


# Each clause of the theory, broken.


def test_clause_1_drawing_from_another_row_than_the_one_told_is_seen() -> None:
    cooler = proposal(WEIGHTS**2)
    assert bias(lambda choices: emitted(siblings_tree(choices.siblings(cooler, 2)), choices)) > SEEN


def test_clause_1_rounding_at_one_end_only_is_seen() -> None:
    """Weights that were rounded on the way to the target alone: small, and no rounding error of float64."""
    rounded = proposal(WEIGHTS.astype(np.float32))
    told = lambda choices: siblings_tree(choices.siblings(proposal(), 2), rounded)  # noqa: E731
    assert bias(lambda choices: emitted(told(choices), choices)) > 1e-10
    both = lambda choices: siblings_tree(choices.siblings(rounded, 2), rounded)  # noqa: E731
    assert bias(lambda choices: emitted(both(choices), choices)) < 1e-15


def test_clause_2_a_number_of_children_that_depends_on_their_values_is_seen() -> None:
    def run(choices: ScriptedChoices) -> int:
        first, second = choices.siblings(proposal(), 2)
        return emitted(siblings_tree([first, second] if WEIGHTS[second] < WEIGHTS[first] else [first]), choices)

    assert bias(run) > SEEN


def test_clause_2_a_number_of_children_that_depends_on_the_ancestors_is_exact() -> None:
    """Below token 1 one child is drawn, elsewhere two: the law of two tokens is the target's."""

    def run(choices: ScriptedChoices) -> tuple[int, ...]:
        [first] = choices.siblings(proposal(), 1)
        below = choices.siblings(proposal(), 1 if first == 1 else 2)
        rows = [proposal(), proposal(), *[None] * len(below)]
        tree = DraftTree.build([first, *below], [ROOT, *[0] * len(below)], rows=rows)
        tokens = verify(tree, lambda _: TARGET, choices, 0).tokens[:2]
        return tokens if len(tokens) == 2 else (*tokens, choices.draw(TARGET, 1))

    found = law(run)
    assert found == pytest.approx(
        {(first, second): TARGET.prob(first) * TARGET.prob(second) for first in range(4) for second in range(4)},
        abs=1e-14,
    )


CHANGES: dict[str, Callable[[list[int]], list[int]]] = {
    "dropped for its score": lambda drawn: [token for token in drawn if WEIGHTS[token] > 0.12],
    "dropped because the target rules it out": lambda drawn: [token for token in drawn if token != 4],
    "reordered by score": lambda drawn: sorted(drawn, key=lambda token: -WEIGHTS[token]),
    "reordered by id": sorted,
    "cut to the best one": lambda drawn: sorted(drawn, key=lambda token: -WEIGHTS[token])[:1],
    "fused with a ranked one": lambda drawn: [1, *(token for token in drawn if token != 1)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_clause_3_siblings_changed_after_they_were_drawn_are_seen(change: str) -> None:
    drawn = lambda choices: CHANGES[change](choices.siblings(proposal(), 2))  # noqa: E731
    assert bias(lambda choices: emitted(siblings_tree(drawn(choices)), choices)) > SEEN


def test_clause_3_the_best_of_several_sampled_trees_is_seen() -> None:
    """Two trees drawn one after the other, the one that scores better kept."""

    def run(choices: ScriptedChoices) -> int:
        drawn = [choices.siblings(proposal(), 1) for _ in range(2)]
        return emitted(siblings_tree(max(drawn, key=lambda siblings: WEIGHTS[siblings[0]])), choices)

    assert bias(run) > SEEN


def test_clause_3_cutting_the_last_drawn_is_exact() -> None:
    """Fixed before anything is drawn, it is a smaller number of children."""
    drawn = lambda choices: siblings_tree(choices.siblings(proposal(), 3)).first(2)  # noqa: E731
    assert bias(lambda choices: emitted(drawn(choices), choices)) < 1e-15


def test_clause_4_using_a_tree_for_its_tokens_is_seen() -> None:
    def run(choices: ScriptedChoices) -> int:
        siblings = choices.siblings(proposal(), 1)
        return emitted(siblings_tree(siblings) if siblings == [0] else DraftTree.empty(), choices)

    assert bias(run) > SEEN


def test_clause_4_choosing_the_rule_by_the_tokens_is_seen() -> None:
    """Sample-match is exact for any tree and rejection for a sampled one, but not whichever looks better."""

    def run(choices: ScriptedChoices) -> int:
        siblings = choices.siblings(proposal(), 1)
        return emitted(DraftTree.chain(siblings) if siblings == [1] else siblings_tree(siblings), choices)

    assert bias(run) > SEEN


def test_a_residual_drawn_from_the_targets_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = lambda row, drafted, siblings: (recursion(row, drafted, siblings)[0], row)  # noqa: E731
    monkeypatch.setattr("paceline.speculation.verify.recursion", broken)
    assert bias(lambda choices: emitted(siblings_tree(choices.siblings(proposal(), 2)), choices)) > SEEN


def test_a_residual_of_the_first_sibling_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(row: Row, drafted: ProposalRow, siblings: list[int]) -> tuple[list[float], Row]:
        return recursion(row, drafted, siblings)[0], recursion(row, drafted, siblings[:1])[1]

    monkeypatch.setattr("paceline.speculation.verify.recursion", broken)
    assert bias(lambda choices: emitted(siblings_tree(choices.siblings(proposal(), 2)), choices)) > SEEN


def test_later_siblings_tested_against_the_whole_rows_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(row: Row, drafted: ProposalRow, siblings: list[int]) -> tuple[list[float], Row]:
        each = [recursion(row, drafted, [token])[0][0] for token in siblings]
        return each, recursion(row, drafted, siblings)[1]

    monkeypatch.setattr("paceline.speculation.verify.recursion", broken)
    assert bias(lambda choices: emitted(siblings_tree(choices.siblings(proposal(), 2)), choices)) > SEEN


def test_a_sampled_tree_verified_by_sample_match_is_exact_too() -> None:
    """Sample-match looks at no row, so a tree without its rows is exact, whatever it holds."""
    assert bias(lambda choices: emitted(DraftTree.chain(choices.siblings(proposal(), 1)), choices)) < 1e-15
