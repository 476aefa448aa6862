"""Nucleus verification at one position: the set, its settings and the closed forms (THEORY 4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row, nucleus
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, verify
from paceline.study.outcomes import ScriptedChoices, law

Dense = np.ndarray


def row_of(*probs: float) -> Row:
    return Row.from_dense(np.array(probs))


# The set.


@pytest.mark.parametrize(
    ("probs", "mass", "kept"),
    [
        ((0.5, 0.3, 0.2), 0.0, []),  # the exact rule
        ((0.5, 0.3, 0.2), 1e-9, [0]),  # never empty above 0
        ((0.5, 0.3, 0.2), 0.5, [0]),  # reached, not passed
        ((0.5, 0.3, 0.2), 0.500001, [0, 1]),
        ((0.2, 0.3, 0.5), 0.8, [1, 2]),
        ((0.1, 0.2, 0.7), 0.1 + 0.2 + 0.6 + 1e-13, [1, 2]),  # short of the mass by rounding alone
        ((0.25, 0.25, 0.25, 0.25), 0.5, [0, 1]),  # ties to the lowest id
        ((0.2, 0.4, 0.2, 0.2), 0.6, [0, 1]),
        ((0.0, 0.6, 0.0, 0.4), 1.0, [1, 3]),  # nothing that cannot be emitted
        ((1.0,), 0.3, [0]),
    ],
)
def test_the_smallest_set_of_that_mass(probs: tuple[float, ...], mass: float, kept: list[int]) -> None:
    row = row_of(*probs)
    found = nucleus(row, mass)
    assert found.token_ids.tolist() == kept
    assert [found.prob(token) for token in kept] == [row.prob(token) for token in kept]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9, 0.999])
def test_the_set_is_minimal_in_large_rows(dtype: type, mass: float) -> None:
    probs = np.random.default_rng(3).random(5000) ** 8
    row = Row.from_dense((probs / probs.sum()).astype(dtype))
    kept = nucleus(row, mass).probs.astype(np.float64)
    assert kept.sum() >= mass - 1e-6
    assert kept.sum() - kept.min() < mass
    assert kept.min() >= np.delete(row.probs, nucleus(row, mass).token_ids).max()


def test_the_row_it_is_taken_on() -> None:
    """Top-k and top-p as served, at the nucleus's own temperature, else the served one, else 1."""
    served = SamplingParams(temperature=0.7, top_k=5, top_p=0.9, seed=3)
    assert Nucleus(0.5).row_params(served) == served
    assert Nucleus(0.5, temperature=1.3).row_params(served) == replace(served, temperature=1.3)
    cold = replace(served, temperature=0.0)
    assert Nucleus(0.5).row_params(cold) == replace(served, temperature=1.0)
    assert Nucleus(0.5, temperature=0.5).row_params(cold) == replace(served, temperature=0.5)


def test_settings_in_range_have_no_faults() -> None:
    assert Nucleus(0.0).faults() == Nucleus(1.0, 0.01, 0.0, 0.0, 0).faults() == []
    assert (
        Nucleus(0.5, temperature=2.0, max_deviation=3.0, max_deviation_per_token=0.5, max_relaxations=9).faults() == []
    )


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (Nucleus(-0.1), "mass"),
        (Nucleus(1.1), "mass"),
        (Nucleus(math.nan), "mass"),
        (Nucleus(0.5, temperature=0.0), "temperature"),
        (Nucleus(0.5, temperature=math.inf), "temperature"),
        (Nucleus(0.5, temperature=math.nan), "temperature"),
        (Nucleus(0.5, max_deviation=-1e-9), "max_deviation"),
        (Nucleus(0.5, max_deviation=math.inf), "max_deviation"),
        (Nucleus(0.5, max_deviation_per_token=math.nan), "max_deviation_per_token"),
        (Nucleus(0.5, max_relaxations=-1), "max_relaxations"),
    ],
)
def test_each_setting_out_of_range_is_named(settings: Nucleus, field: str) -> None:
    [(name, _, allowed)] = settings.faults()
    assert name == field
    assert allowed


def test_every_fault_is_named_at_once() -> None:
    names = [name for name, _, _ in Nucleus(2.0, 0.0, -1.0, -1.0, -1).faults()]
    assert names == ["mass", "temperature", "max_deviation", "max_deviation_per_token", "max_relaxations"]


# One position.


class Emission(NamedTuple):
    token: int
    accepted: bool
    relaxed: bool
    spent: float


Draft = Callable[[ScriptedChoices], DraftTree]


def emission(draft: Draft, row: Row, mass: float, choices: ScriptedChoices, nucleus_row: Row | None = None) -> Emission:
    good = nucleus(row if nucleus_row is None else nucleus_row, mass)
    relaxing = Relaxing(Nucleus(mass), Ledger(), 0, lambda _: row, lambda _: good)
    walk = verify(draft(choices), lambda _: row, choices, 0, lambda _: True, relaxing)
    return Emission(walk.tokens[0], bool(walk.accepted), bool(walk.relaxed), walk.ledger.spent)


def sampled(probs: Dense, count: int) -> Draft:
    row = ProposalRow(np.arange(len(probs), dtype=np.int32), probs)

    def draft(choices: ScriptedChoices) -> DraftTree:
        tokens = choices.siblings(row, count)
        return DraftTree.build(tokens, [ROOT] * len(tokens), rows=[row, *[None] * len(tokens)])

    return draft


def ranked(*tokens: int) -> Draft:
    return lambda _: DraftTree.build(tokens, [ROOT] * len(tokens))


def law_of(draft: Draft, probs: Dense, mass: float) -> dict[Emission, float]:
    return law(partial(emission, draft, Row.from_dense(probs), mass))


def mean(found: dict[Emission, float], field: str) -> float:
    return math.fsum(getattr(each, field) * probability for each, probability in found.items())


def deviation(found: dict[Emission, float], probs: Dense) -> float:
    emitted = np.zeros(len(probs))
    for each, probability in found.items():
        emitted[each.token] += probability
    return float(np.abs(emitted - probs).sum()) / 2


def random_rows(seed: int, vocab: int = 5) -> tuple[Dense, Dense]:
    random = np.random.default_rng(seed)
    target, draft = random.random(vocab) ** 2 + 0.01, random.random(vocab) ** 2 + 0.01
    return target / target.sum(), draft / draft.sum()


MASSES = [0.0, 0.3, 0.6, 0.85, 1.0]


@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.parametrize("seed", range(10))
def test_one_candidate_has_the_papers_closed_form(seed: int, mass: float) -> None:
    """TV = eps = sum over N of max(q - p, 0), and P(accept) = sum min(p, q) + eps."""
    target, draft = random_rows(seed)
    found = law_of(sampled(draft, 1), target, mass)
    inside = nucleus(Row.from_dense(target), mass).token_ids
    eps = float(np.maximum(draft - target, 0.0)[inside].sum())
    assert deviation(found, target) == pytest.approx(eps, abs=1e-12)
    assert mean(found, "spent") == pytest.approx(eps, abs=1e-12)
    assert mean(found, "relaxed") == pytest.approx(eps, abs=1e-12)
    assert mean(found, "accepted") == pytest.approx(float(np.minimum(target, draft).sum()) + eps, abs=1e-12)


@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.parametrize("children", [(0,), (1, 3), (4, 2, 0), (0, 1, 2, 3, 4), (2, 4, 1, 3)])
def test_ranked_children_deviate_by_what_is_outside(children: tuple[int, ...], mass: float) -> None:
    for seed in range(5):
        target, _ = random_rows(seed)
        found = law_of(ranked(*children), target, mass)
        met = bool({*children} & {*nucleus(Row.from_dense(target), mass).token_ids.tolist()})
        eps = 1.0 - float(target[list(children)].sum()) if met else 0.0
        assert deviation(found, target) == pytest.approx(eps, abs=1e-12)
        assert mean(found, "spent") == pytest.approx(eps, abs=1e-12)
        assert mean(found, "accepted") == pytest.approx(1.0 if met else float(target[list(children)].sum()), abs=1e-12)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("mass", MASSES)
@pytest.mark.parametrize("seed", range(5))
def test_several_sampled_siblings_deviate_by_no_more_than_is_spent(seed: int, mass: float, count: int) -> None:
    target, draft = random_rows(seed, 4)
    found = law_of(sampled(draft, count), target, mass)
    assert deviation(found, target) <= mean(found, "spent") + 1e-12
    assert mean(found, "relaxed") == pytest.approx(mean(found, "spent"), abs=1e-12)


def test_the_most_probable_sibling_in_the_nucleus_is_kept_and_ties_go_to_the_lowest_id() -> None:
    target = np.array([0.05, 0.2, 0.2, 0.15, 0.4])
    found = law_of(ranked(3, 2, 1, 0), target, 0.95)
    assert {each.token for each in found if each.relaxed} == {1}
    assert {each.token for each in law_of(ranked(0, 3), target, 0.95) if each.relaxed} == {3}


def test_only_siblings_in_the_nucleus_are_kept() -> None:
    target = np.array([0.5, 0.3, 0.2])
    assert not any(each.relaxed for each in law_of(ranked(1, 2), target, 0.5))
    assert any(each.relaxed for each in law_of(ranked(1, 2), target, 0.6))


@pytest.mark.parametrize(
    ("children", "emitted", "relaxed", "spent"),
    [((2, 0), 2, False, 0.0), ((0, 1), 0, True, 1.0), ((3,), 2, False, 0.0)],
)
def test_temperature_0_spends_all_or_nothing(
    children: tuple[int, ...], emitted: int, relaxed: bool, spent: float
) -> None:
    good = row_of(0.3, 0.25, 0.35, 0.1)
    found = law(lambda choices: emission(ranked(*children), Row.one_hot(2), 0.7, choices, good))
    assert found == {Emission(emitted, emitted in children, relaxed, spent): 1.0}
