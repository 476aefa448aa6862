"""Merging what two members say: laws of the merged probabilities, and what is learned of each."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.drafter.proposer import likeliest
from paceline.drafter.said import CELLS, Heard, Said, mark_prob
from paceline.drafter.said import said_of as said_by
from paceline.drafter.trust import DEPTHS, SessionTrust, Trust
from paceline.speculation.propose import Candidates, ranked

Probs = dict[int, float]
SIGMAS = 5.3  # of a binomial count: false alarm 1e-7


def said_of(suffix: Probs, model: Candidates | None, least: float, most: int, own: Probs | None = None) -> Said:
    """Everything from the session's own text, unless `own` says how much of it."""
    return said_by(Heard(suffix, suffix if own is None else own), model, least, most)


def row(probs: dict[int, float]) -> Candidates:
    return ranked(np.array(list(probs), np.int64), np.log(list(probs.values())), len(probs))


def taught(trust: SessionTrust, contexts: int, seed: int, suffix: float, model: float, depth: int = 1) -> None:
    """Contexts in which the suffix's first token (given 0.5) and the model's (given 0.6) are right that often."""
    chance = np.random.default_rng(seed)
    for _ in range(contexts):
        first, second, other = chance.choice(1000, 3, replace=False).tolist()
        token = chance.choice([first, second, other], p=[suffix, model, 1 - suffix - model])
        trust.learn(said_of({first: 0.5}, row({second: 0.6, other: 0.01}), 1e-3, 64), depth, int(token))


def test_every_token_once_and_no_more_than_certainty() -> None:
    chance = np.random.default_rng(1)
    trust = SessionTrust(Trust())
    for _ in range(300):
        ids = chance.choice(40, 24, replace=False).tolist()
        suffix = dict(zip(ids[:12], (chance.dirichlet([0.3] * 12) * chance.random()).tolist(), strict=True))
        model = None
        if chance.random() < 0.8:
            probs = chance.dirichlet([0.3] * 16)
            model = row({token: float(prob) for token, prob in zip(ids[8:], probs, strict=True) if prob > 0})
        said = said_of(suffix, model, 1e-3, 64)
        assert len(set(said.tokens)) == len(said.tokens)
        looked = {} if model is None else dict(zip(model.tokens.tolist(), np.exp(model.log_probs), strict=True))
        named = {token for token in ids if max(suffix.get(token, 0), looked.get(token, 0)) >= 1e-3}
        assert set(said.tokens) == named
        for spot in said.spots:
            assert sum(share for _, share in spot.cells) == pytest.approx(1)
            assert all(0 <= cell < CELLS and share >= 0 for cell, share in spot.cells)
        for depth in (1, 2, 9):
            probs = trust.probs(said, depth)
            assert all(0 < prob < 1 for prob in probs)
            assert sum(probs) <= 1
        if said.tokens:
            trust.learn(said, int(chance.integers(1, 9)), int(chance.choice(said.tokens)))


def test_of_the_models_tokens_as_many_as_can_be_of_use() -> None:
    model = row({token: 0.1 - token / 1000 for token in range(9)})
    assert said_of({}, model, 1e-3, 3).tokens == [0, 1, 2]
    assert sorted(said_of({7: 0.2, 20: 0.1}, model, 1e-3, 3).tokens) == [0, 1, 2, 7, 20]
    assert said_of({7: 1e-4}, model, 0.099, 3).tokens == [0, 1], "too little is nothing"


def test_before_anything_is_seen_more_said_is_more_probable() -> None:
    trust = SessionTrust(Trust())

    def prob(suffix: float, model: float) -> float:
        model_row = row({2: model, 3: 1e-3}) if model else row({3: 1e-3})
        said = said_of({1: 0.05} | ({2: suffix} if suffix else {}), model_row, 1e-3, 64)
        return dict(zip(said.tokens, trust.probs(said, 1), strict=True))[2]

    for low, high in ((0.02, 0.1), (0.1, 0.4), (0.4, 0.6)):
        assert prob(low, 0.1) < prob(high, 0.1)
        assert prob(0.1, low) < prob(0.1, high)
    assert prob(0.3, 0.3) > max(prob(0.3, 0), prob(0, 0.3)), "agreement counts"
    for alone in (0.02, 0.1, 0.6, 0.9):
        said = said_of({2: alone}, None, 1e-3, 64)
        assert trust.probs(said, 1)[0] == pytest.approx(alone, rel=0.15), "the only one's word is taken"


def test_equal_chances_stand_by_token() -> None:
    said = said_of({7: 0.2, 3: 0.2}, row({5: 0.2, 1: 0.2}), 1e-3, 64)
    found = likeliest(zip(said.tokens, SessionTrust(Trust()).probs(said, 1), strict=True), 4)
    assert found.tokens.tolist() in ([3, 7, 1, 5], [1, 5, 3, 7])


@pytest.mark.parametrize(("suffix", "model"), [(0.8, 0.1), (0.1, 0.8), (0.45, 0.45), (0.02, 0.02)])
def test_probabilities_come_to_what_was_right(suffix: float, model: float) -> None:
    """False alarm 1e-6: a cell remembers 500 to 1000 contexts, and what is said lies between two marks of each member.

    What a context says of the next differs from the mean of what it shares cells with by nothing, since all are alike.
    """
    trust = SessionTrust(Trust())
    taught(trust, 4000, 3, suffix, model)
    said = said_of({1: 0.5}, row({2: 0.6, 3: 0.01}), 1e-3, 64)
    probs = dict(zip(said.tokens, trust.probs(said, 1), strict=True))
    for token, rate in ((1, suffix), (2, model)):
        bound = SIGMAS * (rate * (1 - rate) / 500) ** 0.5 + 0.02  # the rest: guess, lean and the limit of the sum
        assert probs[token] == pytest.approx(rate, abs=bound)


def test_a_member_that_is_never_right_leaves_the_other_its_order_and_its_probabilities() -> None:
    chance = np.random.default_rng(5)
    alone, beside = SessionTrust(Trust()), SessionTrust(Trust())
    for _ in range(1500):
        ids = chance.choice(1000, 12, replace=False).tolist()
        good = chance.dirichlet([0.4] * 6)
        bad = chance.dirichlet([0.2] * 6)
        suffix = dict(zip(ids[:6], good.tolist(), strict=True))
        token = int(chance.choice(ids[:6], p=good))
        alone.learn(said_of(suffix, None, 1e-3, 64), 1, token)
        beside.learn(said_of(suffix, row(dict(zip(ids[6:], bad.tolist(), strict=True))), 1e-3, 64), 1, token)
    for suffix in ({1: 0.5, 2: 0.3, 3: 0.15}, {1: 0.9, 2: 0.05, 3: 0.02}):
        one, other = said_of(suffix, None, 1e-3, 64), said_of(suffix, row({8: 0.9, 9: 0.05}), 1e-3, 64)
        expected = dict(zip(one.tokens, alone.probs(one, 1), strict=True))
        found = dict(zip(other.tokens, beside.probs(other, 1), strict=True))
        assert found[8] < 0.02
        assert [token for token in sorted(found, key=lambda each: -found[each]) if token < 4] == [1, 2, 3]
        for token, prob in expected.items():
            assert found[token] == pytest.approx(prob, abs=0.12)


def test_levels_are_known_apart_and_unseen_ones_by_all() -> None:
    trust = SessionTrust(Trust())
    taught(trust, 600, 1, 0.9, 0.05, depth=1)
    taught(trust, 600, 2, 0.1, 0.05, depth=2)
    trust = SessionTrust(trust.trust)  # another session, which leans to nobody
    said = said_of({1: 0.5}, row({2: 0.6, 3: 0.01}), 1e-3, 64)
    levels = [trust.probs(said, depth)[0] for depth in range(1, DEPTHS + 2)]
    assert levels[0] > 0.75
    assert levels[1] < 0.25
    assert 0.3 < levels[2] < 0.7
    assert levels[2] == levels[3], "the last level stands for deeper ones"


def test_a_session_leans_its_own_way() -> None:
    trust = Trust()
    taught(SessionTrust(trust), 800, 1, 0.6, 0.2)
    one, other = SessionTrust(trust), SessionTrust(trust)
    taught(one, 12, 2, 0.0, 0.9)
    said = said_of({1: 0.5}, row({2: 0.6, 3: 0.01}), 1e-3, 64)
    here, there = one.probs(said, 1), other.probs(said, 1)
    assert here[0] < 0.8 * there[0]
    assert here[1] > 1.2 * there[1]


def test_what_was_learned_long_ago_fades() -> None:
    trust = SessionTrust(Trust())
    taught(trust, 5000, 1, 0.9, 0.05)
    taught(trust, 3000, 2, 0.1, 0.05)
    said = said_of({1: 0.5}, row({2: 0.6, 3: 0.01}), 1e-3, 64)
    assert trust.probs(said, 1)[0] < 0.25


def test_lines_tell_what_was_promised_and_what_was_right() -> None:
    trust = Trust()
    session = SessionTrust(trust)
    for right in (True, False, False, True):
        session.learn(said_of({1: 0.5, 2: 0.3}, row({3: 0.7}), 1e-3, 64), 1, 1 if right else 3)
    session.learn(said_of({}, row({3: 0.9}), 1e-3, 64), 7, 3)
    found = {(line.member, line.depth): (line.contexts, line.promised, line.right) for line in trust.lines()}
    assert found == {
        ("suffix", 1): (4, 0.5, 0.5),
        ("model", 1): (4, pytest.approx(0.7), 0.5),
        ("model", DEPTHS): (1, pytest.approx(0.9), 1.0),
    }


def test_marks_are_even_in_log_odds() -> None:
    odds = [np.log(mark_prob(mark) / (1 - mark_prob(mark))) for mark in range(11)]
    assert np.allclose(np.diff(odds), np.diff(odds)[0])
    assert mark_prob(0) < 0.0011
    assert mark_prob(10) > 0.98


def test_own_text_and_text_served_earlier_are_trusted_apart() -> None:
    trust = Trust()
    own, store = (said_of({1: 0.5}, row({2: 0.6}), 1e-3, 64, own={1: part}) for part in (0.4, 0.1))
    for number in range(600):
        teacher = SessionTrust(trust)
        teacher.learn(own, 1, 1 if number % 10 else 3)
        teacher.learn(store, 1, 3 if number % 10 else 1)
    session = SessionTrust(trust)
    assert session.probs(own, 1)[0] > 0.8
    assert session.probs(store, 1)[0] < 0.2
    for _ in range(20):
        session.learn(store, 1, 1)
    fresh = SessionTrust(trust)
    assert session.probs(store, 1)[0] > 1.5 * fresh.probs(store, 1)[0], "this session leans to served text"
    assert session.probs(own, 1)[0] == pytest.approx(fresh.probs(own, 1)[0]), "and to nothing else"
