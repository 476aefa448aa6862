"""The row carried on when the drawn token is not emitted (THEORY 5, `retain`), and what breaking it does to the law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from paceline.speculation.choices import Choices
from paceline.speculation.modes import Selection
from paceline.speculation.rows import Row
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import retained
from paceline.study.outcomes import law
from speculation.languages import difference, language, reference
from speculation.rounds import Decoding, Reply, ranked_drafter, seeded, tokens_of

ROW = Row.from_dense(np.array([0.1, 0.2, 0.3, 0.4]))


def test_it_is_the_row_without_the_children_renormalised() -> None:
    tree = DraftTree.build([3, 1, 2, 0], [ROOT, ROOT, 0, 0])
    assert retained(ROW, tree, ROOT).dense(4).tolist() == pytest.approx([0.25, 0, 0.75, 0])  # type: ignore[union-attr]
    assert retained(ROW, tree, 0).dense(4).tolist() == pytest.approx([0, 1 / 3, 0, 2 / 3])  # type: ignore[union-attr]


def test_below_a_leaf_it_is_the_row_itself() -> None:
    assert retained(ROW, DraftTree.chain([1]), 0) is ROW
    assert retained(ROW, DraftTree.empty(), ROOT) is ROW


def test_there_is_none_where_only_children_can_be_drawn() -> None:
    assert retained(Row.one_hot(2), DraftTree.chain([2]), ROOT) is None
    assert retained(ROW, DraftTree.build([0, 1, 2, 3], [ROOT] * 4), ROOT) is None


def test_it_is_the_law_of_the_draw_given_that_it_was_outside() -> None:
    tree = DraftTree.build([3, 0], [ROOT, ROOT])
    drawn = law(lambda choices: choices.draw(ROW, 0))
    outside = {token: drawn[token] for token in (1, 2)}
    total = sum(outside.values())
    kept = retained(ROW, tree, ROOT)
    assert kept is not None
    assert {token: probability / total for token, probability in outside.items()} == pytest.approx(
        dict(zip(kept.token_ids.tolist(), kept.probs.tolist(), strict=True))
    )


def test_under_the_noise_of_a_position_the_next_draw_is_the_same_token() -> None:
    tree, row = DraftTree.build([2, 0], [ROOT, ROOT]), Row.from_dense(np.full(5, 0.2))
    kept = retained(row, tree, ROOT)
    assert kept is not None
    withheld = [(seeded(seed).draw(row, 9), seeded(seed).draw(kept, 9)) for seed in range(500)]
    outside = [(first, second) for first, second in withheld if first not in (0, 2)]
    assert len(outside) > 200
    assert all(first == second for first, second in outside)


@dataclass(frozen=True)
class Broken(Decoding):
    """Decoding whose retained row is changed between rounds."""

    change: Callable[[Reply], Reply] = lambda reply: reply

    def round(self, reply: Reply, choices: Choices) -> Reply:
        return self.change(super().round(reply, choices))


def drawn_afresh(reply: Reply) -> Reply:
    """The next draw is from the whole row again."""
    return reply._replace(held=())


def not_renormalised_by_all(reply: Reply) -> Reply:
    """Another token is ruled out too."""
    return reply._replace(held=tuple((token, prob / _rest(reply)) for token, prob in reply.held[:-1]))


def _rest(reply: Reply) -> float:
    return sum(prob for _, prob in reply.held[:-1])


def bias(change: Callable[[Reply], Reply], seed: int) -> float:
    drafter = ranked_drafter(language(4, seed + 100))
    way = Broken(language(4, seed), drafter, Selection.RETAIN, budget=3, horizon=3, change=change)
    return difference(tokens_of(way.laws()), reference(way.target, 3))


@pytest.mark.parametrize("seed", range(4))
def test_a_retained_row_that_is_not_carried_on_is_seen(seed: int) -> None:
    assert bias(lambda reply: reply, seed) < 1e-12
    assert bias(drawn_afresh, seed) > 1e-3


def test_a_retained_row_with_too_few_tokens_is_seen() -> None:
    assert max(bias(not_renormalised_by_all, seed) for seed in range(3)) > 1e-3


def test_the_drawn_token_stays_home_and_a_draw_follows_none_accepted() -> None:
    """Right, then wrong: the accepted token is emitted and the drawn one is not. Wrong at once: it is emitted."""
    reply = (1, 2, 3, 0, 1, 2)
    target = lambda context: Row.one_hot(reply[len(context)])  # noqa: E731
    draft = lambda context, *_: DraftTree.build([reply[len(context)], 7], [ROOT, 0], [0.0, 0.0])  # noqa: E731
    way = Decoding(target, draft, Selection.RETAIN, horizon=6)
    assert way.round(Reply(), seeded(0)) == Reply((1,), held=((2, 1.0),))
    wrong = lambda *_: DraftTree.build([7], [ROOT], [0.0])  # noqa: E731
    assert Decoding(target, wrong, Selection.RETAIN, horizon=6).round(Reply(), seeded(0)) == Reply((1,))
