"""The suffix proposer: what it finds, what it may learn, what it never proposes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from paceline.drafter.ngrams import MAX_FOLLOWERS, NGrams
from paceline.drafter.proposer import DraftOptions, Want
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from support.drafting import grown

OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset([99]), 100, True)


def proposer(depth: int = 8) -> SuffixProposer:
    return SuffixProposer(TextStore(MB), depth, 0.01)


def tree(
    made: SuffixProposer, context: list[int], budget: int = 8, options: DraftOptions = OPTIONS, session: int = 1
) -> DraftTree:
    made.open(session, np.asarray(context, np.int32), len(context), options)
    (found,) = grown(made, Want(session, budget))
    made.close(session)
    return found


def test_a_repeat_is_continued() -> None:
    found = tree(proposer(), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    assert found.path_tokens(3) == [4, 5, 6, 7]
    assert found.log_probs is not None
    assert found.log_probs[0] > math.log(0.4)


def test_nothing_known_is_nothing_said() -> None:
    assert len(tree(proposer(), [1, 2, 3, 4])) == 0


def test_several_continuations_make_a_tree() -> None:
    found = tree(proposer(), [1, 2, 5, 1, 2, 6, 1, 2])
    assert {int(found.tokens[node]) for node in found.children(-1)} == {5, 6}


def test_longer_agreement_is_trusted_more() -> None:
    long = tree(proposer(), [1, 2, 3, 4, 9, 8, 1, 2, 3, 4])
    short = tree(proposer(), [1, 2, 3, 4, 9, 8, 7, 6, 5, 4])
    assert long.tokens[0] == short.tokens[0] == 9
    assert long.log_probs[0] > short.log_probs[0]  # type: ignore[index]


def test_advancing_equals_opening_with_the_whole_context() -> None:
    context = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
    made = proposer()
    made.open(1, np.asarray(context[:3], np.int32), 3, OPTIONS)
    for token in context[3:]:
        grown(made, Want(1, 4))
        made.advance(1, [token])
    (found,) = grown(made, Want(1, 8))
    whole = tree(proposer(), context)
    assert found.tokens.tolist() == whole.tokens.tolist()
    assert found.parents.tolist() == whole.parents.tolist()


SAMPLED = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("options", "learned"),
    [
        (OPTIONS, True),
        (replace(OPTIONS, learn=False), False),
        (replace(OPTIONS, proposal=Proposal.COUPLED, sampling=SAMPLED), True),
        (replace(OPTIONS, proposal=Proposal.SAMPLED, sampling=SAMPLED), False),  # whatever its target says
    ],
)
def test_the_store_learns_replies_only_where_it_may(options: DraftOptions, learned: bool) -> None:
    made = proposer()
    made.open(1, np.asarray([10, 11], np.int32), 2, options)
    made.advance(1, [20, 21, 22])
    made.close(1)
    assert made.store.tokens == (3 if learned else 0)
    found = tree(made, [30, 20])
    assert found.tokens.tolist() == ([21, 22] if learned else [])
    assert len(tree(made, [30, 10], session=2)) == 0, "the prompt of another session is not learned"


def test_own_text_counts_more_than_the_store() -> None:
    made = proposer()
    made.store.add([1, 2, 7], 0)
    made.store.learn_part()
    found = tree(made, [1, 2, 8, 5, 1, 2])
    assert found.tokens[0] == 8


def test_sightings_count_less_and_less() -> None:
    grams = NGrams()
    for token in (5, 5, 5, 6):
        grams.learn([1], token)
    assert grams.followers(1) == {5: pytest.approx(2.71), 6: 1.0}
    assert grams.followers(2) is None
    for _ in range(1000):
        grams.learn([1], 6)
    assert grams.followers(1)[6] == pytest.approx(10.0)  # type: ignore[index]


def test_a_context_of_many_followers_keeps_the_frequent_and_the_late() -> None:
    grams = NGrams()
    for token in [7, 7, 7, *range(100, 100 + 50 * MAX_FOLLOWERS), 9, 9]:
        grams.learn([1], token)
    found = grams.followers(1)
    assert found is not None
    assert len(found) <= MAX_FOLLOWERS
    assert {9, 99 + 50 * MAX_FOLLOWERS} <= set(found)
    assert 100 not in found
    assert 7 not in found, "frequent once, and long ago"
    for _ in range(50):
        for token in [7, 7, 7, *range(100, 110)]:
            grams.learn([2], token)
        grams.learn([2], 1000 + _)
    assert grams.followers(2)[7] > 5  # type: ignore[index]


def test_growth_ends_at_an_end_token_and_below_the_vocabulary() -> None:
    found = tree(proposer(), [1, 2, 99, 4, 5, 1, 2])
    assert 99 in found.tokens.tolist()
    assert found.children(found.tokens.tolist().index(99)) == []
    narrow = tree(proposer(), [1, 2, 50, 1, 2], options=replace(OPTIONS, vocab_size=50))
    assert 50 not in narrow.tokens.tolist()


def test_limits_of_budget_and_depth() -> None:
    context = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    assert len(tree(proposer(), context, budget=3)) == 3
    assert tree(proposer(depth=2), context).depths.max() == 2


def test_coupled_trees_follow_the_noise_and_infinite_strength_does_not() -> None:
    context = [1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2]
    ranked = tree(proposer(), context)
    params = SamplingParams(temperature=1.0, seed=3)
    coupled = replace(OPTIONS, proposal=Proposal.COUPLED, strength=math.inf, sampling=params)
    blind = tree(proposer(), context, options=coupled)
    assert blind.tokens.tolist() == ranked.tokens.tolist()
    firsts = set()
    for seed in range(30):
        options = replace(OPTIONS, proposal=Proposal.COUPLED, strength=1.0, sampling=replace(params, seed=seed))
        firsts.add(int(tree(proposer(), context, options=options).tokens[0]))
    assert firsts == {5, 6, 7}
