"""Rows of the target at the drafter: what is drafted with when a context comes again, and who must not profit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.drafter.known_rows import ContextHash, KnownRows
from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import DraftOptions, Proposer, Want
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import TextStore
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from support.drafting import grown

VOCAB = 8
OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset(), VOCAB, True)
ROW = Row(np.asarray([2, 6]), np.asarray([0.9, 0.1]))
CONTEXT = np.asarray([1, 3], np.int32)


def model(vocab: int = VOCAB) -> ModelProposer:
    runner = ToyRunner(np.eye(vocab)[np.arange(vocab)])  # after each token comes the same again
    return ModelProposer(runner, "same", max_depth=3, width=4, step_tokens=64, min_path_prob=0.0, known=KnownRows(9))


def suffix() -> SuffixProposer:
    return SuffixProposer(TextStore(0), 3, 0.0, KnownRows(9))


MAKE = {"model": model, "suffix": suffix}


def tree(made: Proposer, session: int, options: DraftOptions = OPTIONS, context: object = CONTEXT) -> DraftTree:
    made.open(session, np.asarray(context, np.int32), 1, options)
    (found,) = grown(made, Want(session, 2))
    assert found is not None
    return found


def told(made: Proposer, options: DraftOptions = OPTIONS, row: Row = ROW) -> None:
    made.open(100, CONTEXT, 1, options)
    made.row(100, row)
    made.close(100)


@pytest.mark.parametrize("make", MAKE)
def test_a_context_that_comes_again_is_drafted_with_the_targets_row(make: str) -> None:
    made = MAKE[make]()
    told(made)
    assert tree(made, 1).tokens[0] == 2
    below = tree(made, 2, context=[1])  # the context lies in the tree
    assert [below.path_tokens(node) for node in range(len(below))] in ([], [[1], [1, 1]])
    other = replace(OPTIONS, sampling=SamplingParams(temperature=0.5))
    assert 2 not in tree(made, 3, other).tokens, "another row is served"
    assert 2 not in tree(made, 4, replace(OPTIONS, tenant="other")).tokens


@pytest.mark.parametrize("make", MAKE)
def test_a_row_is_for_its_session_only_where_nothing_may_be_learned(make: str) -> None:
    """A nucleus request that is repeated with its seed would be drafted with what its own noise had led to."""
    made = MAKE[make]()
    told(made, replace(OPTIONS, learn=False))
    assert 2 not in tree(made, 1).tokens


def test_a_row_with_tokens_that_the_drafters_model_lacks_costs_nobody_a_pass() -> None:
    made = model(vocab=4)
    told(made)  # token 6 has no embedding
    assert tree(made, 1, context=[1]).tokens.tolist() == [1, 1]
    assert tree(made, 2).tokens.tolist() == [2, 2]
    made.row(2, Row(np.asarray([6]), np.asarray([1.0])))
    assert [len(each.tree) for each in made.propose([Want(2, 2)]) if each is not None] == [0]


@pytest.mark.parametrize("make", MAKE)
def test_a_row_with_tokens_beyond_a_sessions_vocabulary(make: str) -> None:
    """Of another target, whose tree it would be a fault in."""
    made = MAKE[make]()
    told(made)
    assert all(token < 5 for token in tree(made, 1, replace(OPTIONS, vocab_size=5)).tokens)


def test_the_least_recently_used_row_goes_first() -> None:
    known = KnownRows(2)
    contexts = [ContextHash(OPTIONS, np.asarray([number], np.int32)) for number in range(3)]
    known.keep(contexts[0], ROW)
    known.keep(contexts[1], ROW)
    assert known.find(contexts[0], ()) is ROW
    known.keep(contexts[2], ROW)
    assert [known.find(each, ()) for each in contexts] == [ROW, None, ROW]
    assert len(known) == 2
