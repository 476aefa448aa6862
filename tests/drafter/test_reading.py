"""Work that waits: contexts are read in parts, before a tree is wanted, and never in the way of one that is."""

from __future__ import annotations

import queue
from dataclasses import replace

import numpy as np
import pytest

from paceline.drafter.engine import DrafterEngine
from paceline.drafter.fused import FusedProposer
from paceline.drafter.messages import Advance, Fault, Open, Reply
from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import DraftOptions, Proposer, UnknownTokens, Want
from paceline.drafter.suffix import INDEX_TOKENS, SuffixProposer
from paceline.drafter.text_store import LEARN_TOKENS, MB, TextStore
from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.sampling import SamplingParams
from support.drafting import grown
from support.times import Given

VOCAB = 16
OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset(), VOCAB, True)
TABLE = np.random.default_rng(1).dirichlet(np.full(VOCAB, 0.5), size=VOCAB)


def model(runner: ToyRunner) -> ModelProposer:
    return ModelProposer(runner, "", max_depth=3, width=4, step_tokens=16, min_path_prob=0.0)


def suffix() -> SuffixProposer:
    return SuffixProposer(TextStore(100 * MB), 8, 0.01)


def opened(session: int, context: list[int], budget: int) -> Open:
    return Open(session, 1, np.asarray(context, np.int32), len(context), "", OPTIONS, budget)


def test_a_context_is_read_before_a_tree_is_wanted() -> None:
    """An early opening without a budget: when the first tree is wanted, no pass over the prompt is left to be run."""
    passes: queue.Queue[int] = queue.Queue()
    runner = ToyRunner(TABLE, before_execute=lambda plan: passes.put(plan.tokens))
    engine = DrafterEngine(model(runner), max_sessions=4, max_budget=8)
    replies: queue.Queue[list[Reply]] = queue.Queue()
    engine.start()
    try:
        engine.submit(1, [opened(1, [3] * 40, budget=0)], replies.put)
        assert [passes.get(timeout=20) for _ in range(3)] == [16, 16, 8]
        assert replies.empty(), "no tree was wanted"
        engine.submit(1, [Advance(1, 1, 40, [], 4)], replies.put)
        (reply,) = replies.get(timeout=20)
        assert reply.tree is not None
        assert (reply.base_length, len(reply.tree)) == (40, 4)
        assert passes.get(timeout=20) <= 4, "the first pass after the reading is a level of the tree"
    finally:
        engine.stop(20)


def test_a_model_that_is_not_worth_waiting_for_reads_behind_a_whole_tree() -> None:
    passes: queue.Queue[int] = queue.Queue()
    runner = ToyRunner(TABLE, before_execute=lambda plan: passes.put(plan.tokens))
    made = FusedProposer(
        suffix(), runner, "", max_depth=3, width=4, step_tokens=16, min_path_prob=0.0, times=Given(0.001, 1.0)
    )
    engine = DrafterEngine(made, max_sessions=4, max_budget=8)
    replies: queue.Queue[list[Reply]] = queue.Queue()
    engine.start()
    try:
        engine.submit(1, [opened(1, [3, 4] * 20, budget=4)], replies.put)
        (reply,) = replies.get(timeout=20)
        assert reply.tree is not None
        assert not reply.growing
        assert reply.tree.tokens.tolist()[0] == 3, "what the text says"
        assert [passes.get(timeout=20) for _ in range(3)] == [16, 16, 8]
        engine.submit(1, [Advance(1, 1, 40, [3], 4)], replies.put)
        (reply,) = replies.get(timeout=20)
        assert reply.base_length == 41
        assert replies.empty()
    finally:
        engine.stop(20)
    assert passes.empty()


def test_a_failure_while_reading_is_told() -> None:
    def fail(plan: PassPlan) -> None:
        raise RuntimeError("out of order")

    engine = DrafterEngine(model(ToyRunner(TABLE, before_execute=fail)), max_sessions=4, max_budget=8)
    replies: queue.Queue[list[Reply]] = queue.Queue()
    engine.start()
    try:
        engine.submit(1, [opened(1, [3], budget=0)], replies.put)
        (reply,) = replies.get(timeout=20)
        assert reply.fault is Fault.INTERNAL
        assert "out of order" not in reply.message
        assert engine.sessions == 0
    finally:
        engine.stop(20)


@pytest.mark.parametrize("make", [suffix, lambda: model(ToyRunner(TABLE))])
def test_without_a_budget_there_is_no_tree_and_the_next_is_the_same(make: type[Proposer]) -> None:
    trees = []
    for read_first in (False, True):
        made = make()
        made.open(1, np.asarray([1, 2, 1, 2, 1], np.int32), 5, OPTIONS)
        if read_first:
            (nothing,) = grown(made, Want(1, 0))
            assert nothing is not None
            assert len(nothing) == 0
        trees.append(grown(made, Want(1, 4))[0])
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist() != []


def test_a_long_text_is_indexed_in_parts_and_short_ones_do_not_wait() -> None:
    made = suffix()
    long = [1, 2, 3, 4] * INDEX_TOKENS
    made.open(1, np.asarray(long, np.int32), 1, OPTIONS)
    made.open(2, np.asarray([5, 6, 5], np.int32), 1, OPTIONS)
    for _ in range(4):
        first, second = grown(made, Want(1, 4), Want(2, 4))
        assert first is None
        assert second is not None
        assert second.tokens[0] == 6
    first = grown(made, Want(1, 4))[0]
    assert first is not None
    assert first.tokens.tolist() == [1, 2, 3, 4]


def test_a_long_reply_is_learned_in_parts_to_its_end() -> None:
    made = suffix()
    reply = [token % VOCAB for token in range(3 * LEARN_TOKENS + 5)]
    made.open(1, np.asarray([9], np.int32), 1, OPTIONS)
    made.advance(1, reply)
    made.close(1)
    made.open(2, np.asarray([9], np.int32), 1, OPTIONS)
    learned = [made.store.tokens]
    while learned[-1] < len(reply):
        grown(made, Want(2, 1))
        learned.append(made.store.tokens)
    assert learned == [LEARN_TOKENS, 2 * LEARN_TOKENS, 3 * LEARN_TOKENS, len(reply)]
    parts, whole = made.store, suffix().store
    whole.add([9, *reply], 1)
    assert not whole.learn_part(room=len(reply))
    assert parts._young.grams._followers == whole._young.grams._followers


def test_tenants_do_not_learn_from_each_other() -> None:
    made = suffix()
    for session, tenant in ((1, "a"), (2, "")):
        made.open(session, np.asarray([1], np.int32), 1, replace(OPTIONS, tenant=tenant))
        made.advance(session, [2, 3 + session])
        made.close(session)
    found = {}
    for session, tenant in ((3, "a"), (4, ""), (5, "b")):
        made.open(session, np.asarray([1, 2], np.int32), 2, replace(OPTIONS, tenant=tenant))
        tree = grown(made, Want(session, 4))[0]
        assert tree is not None
        found[tenant] = tree.tokens.tolist()
    assert found == {"a": [4], "": [5], "b": []}


def test_a_failed_pass_leaves_the_other_sessions_as_they_were() -> None:
    """A level fails for two sessions in one pass; asked again, each gives the tree it would have given."""
    failing: list[bool] = [False]
    levels = [0]

    def before(plan: PassPlan) -> None:
        levels[0] += 1
        if failing[0] and levels[0] == 3:  # after the prompts and one level
            failing[0] = False
            raise RuntimeError("once")

    expected = model(ToyRunner(TABLE))
    runner = ToyRunner(TABLE, before_execute=before)
    made = model(runner)
    for each in (expected, made):
        each.open(1, np.asarray([1, 2], np.int32), 2, OPTIONS)
        each.open(2, np.asarray([3], np.int32), 1, OPTIONS)
    failing[0] = True
    with pytest.raises(RuntimeError, match="once"):
        grown(made, Want(1, 8), Want(2, 8))
    for want in (Want(1, 8), Want(2, 8)):
        (tree,), (right,) = grown(made, want), grown(expected, want)
        assert tree is not None
        assert right is not None
        assert tree.tokens.tolist() == right.tokens.tolist()
        made.advance(want.session, tree.path_tokens(0))
        assert grown(made, want)[0] is not None
    runner.kv.check_integrity()


def test_tokens_the_model_does_not_have_are_refused_before_a_pass() -> None:
    made = model(ToyRunner(TABLE))
    options = replace(OPTIONS, vocab_size=20)
    with pytest.raises(UnknownTokens, match="token 16, the drafter's model has 16"):
        made.open(1, np.asarray([1, 16], np.int32), 1, options)
    made.open(1, np.asarray([1], np.int32), 1, options)
    with pytest.raises(UnknownTokens, match="token 19"):
        made.advance(1, [3, 19])
