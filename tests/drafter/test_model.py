"""The model proposer: right trees, a cache that follows, limits, and company that changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest
import torch
from scipy import stats

from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import ContextTooLong, DraftOptions, NoSlot, Want
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.toy import ToyRunner
from paceline.runtime.transformers_runner import TransformersRunner, load_runner
from paceline.speculation.choices import SeededChoices
from paceline.speculation.modes import Proposal
from paceline.speculation.noise import propose_seed
from paceline.speculation.rows import Row, process
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path
from paceline.speculation.shape import places
from paceline.speculation.tree import DraftTree
from paceline.speculation.verify import verify
from support.tiny import tiny_model

VOCAB = 64
OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset(), VOCAB, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    return tiny_model(tmp_path_factory.mktemp("drafter"))


def runner_of(folder: FilePath, kv_tokens: int = 1024) -> TransformersRunner:
    return load_runner(ModelSpec(str(folder)), kv_tokens, measure_s=0.0)


def proposer_of(runner: TransformersRunner | ToyRunner, **changes: int | float) -> ModelProposer:
    settings = {"max_depth": 4, "width": 4, "step_tokens": 64, "min_path_prob": 0.0, **changes}
    return ModelProposer(runner, "same", **settings)  # type: ignore[arg-type]


def ask(made: ModelProposer, *wants: Want) -> list[DraftTree]:
    """Trees, calling again as long as one is not finished."""
    found: dict[int, DraftTree] = {}
    while missing := [want for want in wants if want.session not in found]:
        for want, growth in zip(missing, made.propose(missing), strict=True):
            if growth is not None and not growth.growing:
                found[want.session] = growth.tree
    return [found[want.session] for want in wants]


def greedy(runner: TransformersRunner, context: list[int], tokens: int) -> list[int]:
    sequence = runner.kv.open()
    reply: list[int] = []
    feed = context
    while len(reply) < tokens:
        rows = runner.execute(PassPlan((Segment.chain(sequence, feed, last_row=True),)))
        runner.kv.keep(sequence, range(len(feed)))
        feed = [process(rows.logits(0, len(feed) - 1), SamplingParams(), VOCAB).argmax()]
        reply += feed
    runner.kv.release(sequence)
    return reply


def test_drafts_stay_as_good_to_the_end(folder: FilePath) -> None:
    """Case A4: two hundred tokens, with spoiled rounds and rounds that want no tree; then a second, shorter session.

    The drafter has the target's weights, and a temperature that makes the most probable path the only likely one, so
    its trees are chains that are right from end to end; and they are those of a cache that knows no history.
    """
    runner, fresh = runner_of(folder), proposer_of(runner_of(folder), max_depth=6)
    made = proposer_of(runner, max_depth=6)
    options = replace(OPTIONS, sampling=SamplingParams(temperature=1e-4))
    for session, prompt, length in ((1, [3, 1, 4, 1, 5], 200), (2, [9, 2], 60)):
        reply = greedy(runner, prompt, length)
        made.open(session, np.asarray(prompt, np.int32), len(prompt), options)
        done = number = 0
        while done < len(reply) - 6:
            number += 1
            if number % 7 in (5, 6):  # no tree is wanted: the cache must follow all the same
                made.advance(session, reply[done : done + 1])
                done += 1
                continue
            (tree,) = ask(made, Want(session, 6))
            assert made.cached_length(session) == len(prompt) + done
            assert tree.tokens.tolist() == reply[done : done + 6], f"a miss at token {done}"
            if number % 3 == 0:
                fresh.open(number, np.asarray([*prompt, *reply[:done]], np.int32), len(prompt), options)
                assert ask(fresh, Want(number, 6))[0].tokens.tolist() == tree.tokens.tolist()
                fresh.close(number)
            accepted = 2 if number % 5 == 0 else 6  # every fifth tree comes to the target spoiled
            made.advance(session, reply[done : done + accepted + 1])
            done += accepted + 1
        made.close(session)
    runner.kv.check_integrity()
    assert runner.kv.pages_used == 0


def test_log_probs_are_those_of_the_model_and_nodes_are_best_first(folder: FilePath) -> None:
    runner = runner_of(folder)
    made = proposer_of(runner, width=16)
    context = [7, 7, 2]
    made.open(1, np.asarray(context, np.int32), 3, OPTIONS)
    (tree,) = ask(made, Want(1, 10))
    assert len(tree) == 10
    assert tree.log_probs is not None
    for node in range(10):
        path = tree.path_tokens(node)
        sequence = runner.kv.open()
        feed = [*context, *path[:-1]]
        rows = runner.execute(PassPlan((Segment.chain(sequence, feed, last_row=True),)))
        expected = torch.log_softmax(rows.logits(0, len(feed) - 1), 0)[path[-1]]
        runner.kv.release(sequence)
        assert tree.log_probs[node] == pytest.approx(float(expected), abs=1e-3)
    scores = [sum(float(tree.log_probs[each]) for each in tree.path(node)) for node in range(10)]
    assert scores == sorted(scores, reverse=True)


def test_company_changes_nothing(folder: FilePath) -> None:
    contexts = {1: [1, 2, 3], 2: list(range(40)), 3: [5], 4: list(range(60, 0, -1))}
    alone = {}
    for session, context in contexts.items():
        made = proposer_of(runner_of(folder))
        made.open(session, np.asarray(context, np.int32), 1, OPTIONS)
        (alone[session],) = ask(made, Want(session, 9))
    made = proposer_of(runner_of(folder))
    for session, context in contexts.items():
        made.open(session, np.asarray(context, np.int32), 1, OPTIONS)
    together = ask(made, *(Want(session, 9) for session in contexts))
    for session, tree in zip(contexts, together, strict=True):
        assert tree.tokens.tolist() == alone[session].tokens.tolist()
        assert tree.parents.tolist() == alone[session].parents.tolist()


def test_a_long_prompt_does_not_hold_up_the_others(folder: FilePath) -> None:
    made = proposer_of(runner_of(folder), step_tokens=16)
    made.open(1, np.asarray([1, 2], np.int32), 1, OPTIONS)
    made.open(2, np.asarray([3] * 100, np.int32), 1, OPTIONS)
    first = made.propose([Want(1, 4), Want(2, 4)])
    assert first[0] is not None
    assert first[1] is None
    assert len(ask(made, Want(2, 4))[0]) == 4


def test_limits_are_said(folder: FilePath) -> None:
    made = proposer_of(runner_of(folder))
    with pytest.raises(ContextTooLong, match="300 tokens, the drafter's limit is 256"):
        made.open(1, np.zeros(300, np.int32), 1, OPTIONS)
    made.open(1, np.zeros(250, np.int32), 1, OPTIONS)
    assert ask(made, Want(1, 8))[0].depths.max() <= 6, "no level reaches beyond the limit"
    with pytest.raises(ContextTooLong):
        made.advance(1, [1] * 7)
    small = proposer_of(runner_of(folder, kv_tokens=64))
    with pytest.raises(NoSlot, match="pages"):
        small.open(1, np.zeros(100, np.int32), 1, OPTIONS)


def test_a_full_cache_is_an_empty_tree_not_an_error(folder: FilePath) -> None:
    runner = runner_of(folder, kv_tokens=32)
    made = proposer_of(runner)
    made.open(1, np.asarray([1] * 16, np.int32), 1, OPTIONS)
    made.open(2, np.asarray([2] * 16, np.int32), 1, OPTIONS)
    made.advance(1, [5])
    assert [len(tree) for tree in ask(made, Want(1, 4))] == [0]
    made.close(2)
    assert len(ask(made, Want(1, 4))[0]) == 4


def test_rows_that_are_not_finite_draft_nothing() -> None:
    table = np.full((4, 4), 0.25)
    table[2] = np.nan
    made = proposer_of(ToyRunner(table))
    made.open(1, np.asarray([2], np.int32), 1, replace(OPTIONS, vocab_size=4))
    assert len(ask(made, Want(1, 4))[0]) == 0
    made.open(2, np.asarray([1], np.int32), 1, replace(OPTIONS, vocab_size=4))
    tree = ask(made, Want(2, 12))[0]
    assert all(tree.children(node) == [] for node in range(len(tree)) if tree.tokens[node] == 2)


@pytest.mark.parametrize(("drafter_vocab", "target_vocab"), [(8, 6), (6, 8)])
def test_padded_and_smaller_vocabularies(drafter_vocab: int, target_vocab: int) -> None:
    runner = ToyRunner(np.full((drafter_vocab, drafter_vocab), 1 / drafter_vocab), vocab_padded=12)
    made = proposer_of(runner)
    made.open(1, np.asarray([1], np.int32), 1, replace(OPTIONS, vocab_size=target_vocab))
    assert ask(made, Want(1, 20))[0].tokens.max() < min(drafter_vocab, target_vocab)


def test_coupled_trees_of_the_targets_own_model_hold_its_draws() -> None:
    table = np.random.default_rng(0).dirichlet(np.full(8, 0.5), size=8)
    params = SamplingParams(temperature=1.0, seed=11)
    made = proposer_of(ToyRunner(table), max_depth=3)
    options = replace(OPTIONS, vocab_size=8, proposal=Proposal.COUPLED, strength=1.0, sampling=params)
    made.open(1, np.asarray([1], np.int32), 1, options)
    context = [1]
    hits = 0
    for _ in range(50):
        (tree,) = ask(made, Want(1, 3))
        row = process(torch.from_numpy(np.log(table[context[-1]])), params, 8)
        token = SeededChoices(params).draw(row, len(context))
        hits += tree.child(-1, token) is not None
        context.append(token)
        made.advance(1, [token])
    assert hits == 50


EVEN = [0.4, 0.2, 0.2, 0.2]  # token 0 ends a reply
AFTER_ALL_BUT_0 = [EVEN, EVEN, EVEN]
THEIRS = np.asarray([[0.0, 0.1, 0.2, 0.7], *AFTER_ALL_BUT_0])
OURS = np.asarray([[0.0, 0.6, 0.2, 0.2], *AFTER_ALL_BUT_0])


def drawn_trees(calls: int, count: int, **changes: int) -> Iterator[tuple[SamplingParams, DraftTree]]:
    """Sampled trees below a context of one token 0, as far as they have grown after so many calls."""
    made = proposer_of(ToyRunner(OURS), **changes)
    for seed in range(count):
        params = SamplingParams(temperature=1.0, seed=seed)
        made.open(
            seed,
            np.zeros(1, np.int32),
            1,
            DraftOptions(Proposal.SAMPLED, 2.0, params, frozenset({0}), 4, False, propose_seed(seed, 0)),
        )
        growth = None
        for _ in range(calls):
            if growth is None or growth.growing:
                (growth,) = made.propose([Want(seed, 8)])
        made.close(seed)
        assert growth is not None
        yield params, growth.tree


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("calls", [1, 2, 3, 9])
def test_a_sampled_trees_places_have_children_whatever_was_drawn_beside_them(calls: int, width: int) -> None:
    numbers: dict[Path, set[int]] = defaultdict(set)
    for _, tree in drawn_trees(calls, 60, width=width):
        for node, place in enumerate(places(tree)):
            if tree.tokens[node] != 0:
                numbers[place].add(len(tree.children(node)))
    assert len(numbers) > 2
    assert all(len(found) == 1 for found in numbers.values()), dict(numbers)


def test_a_sampled_tree_whose_passes_are_few_and_narrow_keeps_the_law() -> None:
    """False alarm 1e-6. Turns that end tokens pass on make end tokens too likely: .47 instead of .4."""
    counts = np.zeros(4)
    for params, tree in drawn_trees(9, 2500, width=1, max_depth=3):
        choices = SeededChoices(params)
        rows = [Row.from_dense(THEIRS[token]) for token in (*tree.tokens.tolist(), 0)]  # the root's is the last
        tokens = verify(tree, rows.__getitem__, choices, 1, lambda token: token == 0).tokens
        second = tokens[1] if len(tokens) > 1 else choices.draw(Row.from_dense(THEIRS[tokens[0]]), 2)
        counts[second] += 1
    expected = np.asarray(EVEN) * counts.sum()
    assert stats.power_divergence(counts, expected, lambda_="log-likelihood").pvalue > 1e-6


@pytest.mark.parametrize("proposal", [Proposal.RANKED, Proposal.SAMPLED])
def test_a_full_pass_makes_a_tree_come_later_and_no_smaller(proposal: Proposal) -> None:
    table = np.random.default_rng(3).dirichlet(np.full(8, 0.5), size=8)
    options = replace(OPTIONS, vocab_size=8, proposal=proposal, sampling=SamplingParams(temperature=1.0))
    (alone,) = ask_of(ToyRunner(table), options, sessions=1)
    for tree in ask_of(ToyRunner(table), options, sessions=5):
        assert tree.tokens.tolist() == alone.tokens.tolist()


def ask_of(runner: ToyRunner, options: DraftOptions, sessions: int) -> list[DraftTree]:
    made = proposer_of(runner, step_tokens=6)
    for session in range(sessions):
        made.open(session, np.asarray([1], np.int32), 1, options)
    return ask(made, *(Want(session, 12) for session in range(sessions)))


@pytest.mark.parametrize(("budget", "passes"), [(1, 1), (2, 2), (3, 3)])
def test_nothing_is_looked_at_below_the_last_node_of_a_full_tree(budget: int, passes: int) -> None:
    """A table that is nearly sure gives a chain: the first node costs the pass of the context, each other one more."""
    table = np.full((8, 8), 0.01 / 7)
    table[np.arange(8), (np.arange(8) + 1) % 8] = 0.99
    plans: list[PassPlan] = []
    made = proposer_of(ToyRunner(table, before_execute=plans.append), max_depth=8)
    made.open(1, np.asarray([0, 1], np.int32), 2, replace(OPTIONS, vocab_size=8))
    (tree,) = ask(made, Want(1, budget))
    assert tree.tokens.tolist() == [2, 3, 4][:budget]
    assert len(plans) == passes
