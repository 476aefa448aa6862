"""Every legal combination of proposal, verification and selection rule (THEORY 6): its law, by walking every outcome.

Coupled trees look at noise, which has no outcomes to walk; theirs are the tokens of plain decoding, seed by seed.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.speculation.modes import Proposal, Selection, refusal
from paceline.speculation.nucleus import Nucleus
from paceline.study.outcomes import total_variation
from speculation.languages import Language, difference, language, reference
from speculation.rounds import (
    Decoding,
    Propose,
    coupled_drafter,
    expected,
    ranked_drafter,
    sampled_drafter,
    seeded,
    tokens_of,
)

RULES = [rule for rule in Selection if rule is not Selection.AUTO]
LEGAL = [
    (proposal, rule, nucleus)
    for proposal in Proposal
    for rule in RULES
    for nucleus in (False, True)
    if refusal(proposal, rule, nucleus=nucleus, greedy=False) is None
]
WALKED = [(proposal, rule) for proposal, rule, nucleus in LEGAL if proposal is not Proposal.COUPLED and not nucleus]
RELAXED = [(proposal, rule) for proposal, rule, nucleus in LEGAL if nucleus]


def drafter_of(proposal: Proposal, drafter: Language) -> Propose:
    return ranked_drafter(drafter) if proposal is Proposal.RANKED else sampled_drafter(drafter)


def decoding(proposal: Proposal, selection: Selection, vocab: int, seed: int, **settings: Any) -> Decoding:
    """Target and drafter of random rows for each context, so that trees differ from context to context."""
    return Decoding(language(vocab, seed), drafter_of(proposal, language(vocab, seed + 100)), selection, **settings)


SIZES = [(2, 4, 3), (3, 3, 3), (4, 2, 3), (5, 2, 2)]  # vocabulary, horizon, budget


def test_what_is_legal_is_the_table_of_the_theory() -> None:
    assert len(LEGAL) == 4 + 4 + 2 + 4 + 2
    assert len(WALKED) == len(RELAXED) == 6


@pytest.mark.parametrize(("vocab", "horizon", "budget"), SIZES)
@pytest.mark.parametrize(("proposal", "selection"), WALKED)
@pytest.mark.parametrize("seed", range(2))
def test_exact_verification_gives_the_targets_law(
    proposal: Proposal, selection: Selection, vocab: int, horizon: int, budget: int, seed: int
) -> None:
    way = decoding(proposal, selection, vocab, seed, horizon=horizon, budget=budget)
    replies = way.laws()
    assert difference(tokens_of(replies), reference(way.target, horizon)) < 1e-12
    assert all(reply.spent == reply.relaxed == 0 for reply in replies)


@pytest.mark.parametrize(("proposal", "selection"), WALKED)
@pytest.mark.parametrize("stop", [0, 1])
def test_a_stop_token_inside_changes_no_law(proposal: Proposal, selection: Selection, stop: int) -> None:
    way = decoding(proposal, selection, 3, 7, horizon=3, stop=stop)
    assert difference(tokens_of(way.laws()), reference(way.target, 3, stop)) < 1e-12


@pytest.mark.parametrize(("proposal", "selection"), WALKED)
def test_nucleus_mass_0_is_the_exact_rule(proposal: Proposal, selection: Selection) -> None:
    way = decoding(proposal, selection, 3, 5, rule=Nucleus(0.0))
    replies = way.laws()
    assert difference(tokens_of(replies), reference(way.target, 3)) < 1e-12
    assert all(reply.spent == reply.relaxed == 0 for reply in replies)


LIMITS = [
    Nucleus(0.7),
    Nucleus(0.9, max_deviation=0.15),
    Nucleus(1.0, max_deviation=0.4),
    Nucleus(0.8, max_deviation_per_token=0.1),
    Nucleus(0.9, max_relaxations=1),
    Nucleus(1.0, max_deviation=0.5, max_deviation_per_token=0.3, max_relaxations=2),
]


@pytest.mark.parametrize("rule", LIMITS)
@pytest.mark.parametrize(("vocab", "horizon", "budget"), [(2, 4, 3), (3, 3, 3), (4, 2, 3)])
@pytest.mark.parametrize(("proposal", "selection"), RELAXED)
@pytest.mark.parametrize("stop", [None, 1])
def test_nucleus_verification_keeps_what_it_certifies(
    proposal: Proposal, selection: Selection, vocab: int, horizon: int, budget: int, rule: Nucleus, stop: int | None
) -> None:
    """TV <= E[deviation_spent] <= max_deviation; each reply's own account is within its limits too."""
    way = decoding(proposal, selection, vocab, 11, horizon=horizon, budget=budget, rule=rule, stop=stop)
    replies = way.laws()
    deviation = total_variation(tokens_of(replies), reference(way.target, horizon, stop))
    spent = expected(replies, lambda reply: reply.spent)
    relaxed = expected(replies, lambda reply: reply.relaxed)
    assert deviation <= spent + 1e-12
    assert deviation <= sum(probability for reply, probability in replies.items() if reply.relaxed) + 1e-12
    if selection is Selection.RETAIN:
        assert relaxed <= spent + 1e-12  # charged on the whole row although some of it is ruled out
    else:
        assert relaxed == pytest.approx(spent, abs=1e-12)
    for reply in replies:
        assert rule.max_deviation is None or reply.spent <= rule.max_deviation + 1e-12
        assert rule.max_relaxations is None or reply.relaxed <= rule.max_relaxations
        if rule.max_deviation_per_token is not None:
            assert reply.spent <= rule.max_deviation_per_token * len(reply.tokens) + 1e-12


@pytest.mark.parametrize(("proposal", "selection"), RELAXED)
def test_the_limits_bind_where_they_are_tested(proposal: Proposal, selection: Selection) -> None:
    """Without any the same replies would spend more, so the certificates above are not met by chance."""
    way = decoding(proposal, selection, 3, 11, rule=Nucleus(1.0))
    limited = decoding(proposal, selection, 3, 11, rule=Nucleus(1.0, max_deviation=0.05))
    free, bound = way.laws(), limited.laws()
    assert total_variation(tokens_of(free), reference(way.target, 3)) > 0.05
    assert expected(bound, lambda reply: reply.spent) <= 0.05 + 1e-12


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("proposal", [Proposal.RANKED, Proposal.COUPLED])
@pytest.mark.parametrize("seed", range(15))
def test_ranked_and_coupled_trees_give_the_tokens_of_plain_decoding(
    selection: Selection, proposal: Proposal, seed: int
) -> None:
    choices, target, drafter = seeded(seed), language(5, seed), language(5, seed + 100)
    propose = ranked_drafter(drafter) if proposal is Proposal.RANKED else coupled_drafter(drafter, choices.params)
    way = Decoding(target, propose, selection, horizon=20)
    plain = Decoding(target, lambda *_: way.propose((), 0, 0, choices), Selection.DRAFT, horizon=20)
    assert way.played(choices).tokens == plain.played(choices).tokens
