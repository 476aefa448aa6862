"""The fused proposer: trees of both members, looks that pay, what is learned, and a member that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from drafter import desk
from paceline.drafter.fused import READ_AHEAD, FusedProposer
from paceline.drafter.known_rows import KnownRows
from paceline.drafter.messages import Fault
from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import ContextTooLong, DraftOptions, Growth, Proposer, Want
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.speculation.choices import SeededChoices
from paceline.speculation.modes import Proposal
from paceline.speculation.noise import propose_seed
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.study.acceptance import walked
from support.times import Given
from target.rig import counting_table, random_table

VOCAB = 64
RANKED = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset(), VOCAB, learn=False)
COUNTING = counting_table(VOCAB, 0.9)


def fused(
    runner: ToyRunner, times: Given | None = None, store: TextStore | None = None, **changes: float
) -> FusedProposer:
    settings = {"max_depth": 6, "width": 4, "step_tokens": 64, "min_path_prob": 0.01, **changes}
    suffix = SuffixProposer(store or TextStore(0), 6, 0.01)
    return FusedProposer(suffix, runner, "same", times=times or Given(), **settings)  # type: ignore[arg-type]


def opened(made: Proposer, context: Sequence[int], session: int = 1, options: DraftOptions = RANKED) -> None:
    made.open(session, np.asarray(context, np.int32), len(context), options)


def growths(made: Proposer, want: Want) -> list[Growth]:
    """Everything that comes for a tree, to its end."""
    found: list[Growth] = []
    while not found or found[-1].growing:
        (growth,) = made.propose([want])
        if growth is not None:
            found.append(growth)
    return found


def tree_of(made: Proposer, session: int = 1, budget: int = 8) -> DraftTree:
    return growths(made, Want(session, budget))[-1].tree


def rounds(made: Proposer, reply: Sequence[int], prompt: int = 4, options: DraftOptions = RANKED) -> int:
    """Rounds that greedy decoding of `reply` takes with trees of eight nodes."""
    opened(made, reply[:prompt], options=options)
    at, count = prompt, 0
    while at < len(reply):
        accepted = len(walked(tree_of(made), list(reply[at:])))
        emitted = reply[at : at + accepted + 1]
        made.advance(1, emitted)
        at, count = at + len(emitted), count + 1
    made.close(1)
    return count


def drawn(table: NDArray[np.float64], tokens: int, seed: int) -> list[int]:
    chance = np.random.default_rng(seed)
    reply = [0]
    while len(reply) < tokens:
        reply.append(int(chance.choice(len(table), p=table[reply[-1]])))
    return reply


def test_what_text_says_comes_at_once_and_the_model_adds_to_it() -> None:
    passes: list[PassPlan] = []
    made = fused(ToyRunner(COUNTING, before_execute=passes.append))
    opened(made, [7, 30, 31, 50, 7])
    (first,) = made.propose([Want(1, 8)])
    assert not passes
    assert first is not None
    assert first.growing
    assert first.tree.tokens.tolist()[:2] == [30, 31], "as the text has gone on before"
    last = growths(made, Want(1, 8))[-1].tree
    assert passes
    assert set(last.tokens[last.children(-1)].tolist()) >= {30, 8}
    assert last.log_probs is not None
    for node in range(-1, len(last)):
        assert np.exp(last.log_probs[last.children(node)]).sum() <= 1 + 1e-9
        assert len(set(last.tokens[last.children(node)].tolist())) == len(last.children(node))


def test_the_model_looks_at_once_below_what_text_has_guessed() -> None:
    passes: list[PassPlan] = []
    made = fused(ToyRunner(COUNTING, before_execute=passes.append))
    opened(made, [7, 30, 50, 7])
    growths(made, Want(1, 8))
    assert passes[0].tokens > 4, "the context and nodes of the text's tree"


@pytest.mark.parametrize(("each_s", "soon"), [(None, False), (0.1, False), (0.004, True)])
def test_a_tree_that_another_follows_within_milliseconds_says_so(each_s: float | None, soon: bool) -> None:
    made = fused(ToyRunner(COUNTING), Given(round_s=10.0, each_s=each_s))
    opened(made, [7, 30, 31, 50, 7])
    *before, last = growths(made, Want(1, 8))
    assert {each.soon for each in before} == {soon}
    assert not last.soon


def test_trees_are_streamed_and_grow() -> None:
    made = fused(ToyRunner(COUNTING))
    opened(made, [3])
    found = growths(made, Want(1, 8))
    sizes = [len(each.tree) for each in found]
    assert len(found) >= 4
    assert [each.growing for each in found] == [True] * (len(found) - 1) + [False]
    assert sizes[0] == 0, "the text says nothing"
    assert found[-1].tree.tokens.tolist() == [4, 5, 6, 7, 8, 9], "as deep as a tree may be"


GOOD = np.random.default_rng(1).dirichlet([0.05] * VOCAB, size=VOCAB) * 0.98 + 0.02 / VOCAB
JUNK = np.random.default_rng(2).dirichlet([0.05] * VOCAB, size=VOCAB)
WARM = replace(RANKED, sampling=SamplingParams(temperature=1.0))


@pytest.mark.parametrize("table", [GOOD, JUNK, 0.5 * GOOD + 0.5 * JUNK], ids=["good", "junk", "half"])
def test_a_tree_of_both_is_no_worse_than_that_of_either(table: NDArray[np.float64]) -> None:
    """Sampled text, every look made: with a model that is right, one that is never right, and one in between."""
    reply = drawn(GOOD, 800, 4)
    alone = {
        "suffix": rounds(SuffixProposer(TextStore(0), 6, 0.01), reply, options=WARM),
        "model": rounds(
            ModelProposer(ToyRunner(table), "", max_depth=6, width=4, step_tokens=64, min_path_prob=0.01),
            reply,
            options=WARM,
        ),
    }
    together = rounds(fused(ToyRunner(table)), reply, options=replace(WARM, learn=True))
    assert together <= 1.05 * min(alone.values()), alone


def test_text_that_repeats_itself_is_drafted_without_the_model() -> None:
    passes: list[PassPlan] = []
    made = fused(ToyRunner(JUNK, before_execute=passes.append), Given(0.03, 0.004))
    text = drawn(GOOD, 60, 3) * 12
    opened(made, text[:90])
    at = 90
    for turn in range(40):
        accepted = len(walked(tree_of(made), text[at:]))
        made.advance(1, text[at : at + accepted + 1])
        at += accepted + 1
        if turn == 20:
            passes.clear()
    assert at > 90 + 40 * 5
    assert len(passes) < 5


def test_looks_stop_where_they_cost_more_than_they_bring() -> None:
    passes: list[PassPlan] = []
    runner = ToyRunner(COUNTING, before_execute=passes.append)
    for round_s, fewest, most in ((1.0, 20 * 3, 20 * 8), (1e-4, 0, 20)):
        passes.clear()
        made = fused(runner, Given(round_s, 0.004))
        opened(made, [3])
        for turn in range(20):
            tree_of(made)
            made.advance(1, [10 + turn])
        assert fewest <= len(passes) <= most
        made.close(1)


def test_while_the_target_computes_its_own_row_looks_are_free() -> None:
    """draw_first: the row is told while the tree grows, and the drawn token with it."""
    passes: list[PassPlan] = []
    made = fused(ToyRunner(COUNTING, before_execute=passes.append), Given(0.01, 0.1))
    opened(made, [3])
    assert len(growths(made, Want(1, 8))) == 1, "a look takes ten rounds"
    for token in (4, 5):
        made.row(1, Row.from_dense(COUNTING[token - 1]))
        made.advance(1, [token])
        assert len(growths(made, Want(1, 8))) == 1
        made.advance(1, [30, 31])
        passes.clear()
        growths(made, Want(1, 8))
        assert len(passes) >= 3
    made.advance(1, [40, 41])
    passes.clear()
    growths(made, Want(1, 8))
    assert not passes, "no row was told in the round before"


def test_the_targets_row_is_drafted_with() -> None:
    passes: list[PassPlan] = []
    runner = ToyRunner(COUNTING, before_execute=passes.append)
    row = Row.from_dense(np.eye(VOCAB)[9] * 0.9 + 0.1 / VOCAB)
    made = FusedProposer(
        SuffixProposer(TextStore(0), 6, 0.01),
        runner,
        "same",
        max_depth=1,
        width=4,
        step_tokens=64,
        min_path_prob=0.01,
        times=Given(),
        known=KnownRows(8),
    )
    opened(made, [3], options=replace(RANKED, learn=True))
    made.row(1, row)
    assert tree_of(made).tokens.tolist()[0] == 9
    made.advance(1, [9])
    made.close(1)
    opened(made, [3], session=2, options=RANKED)
    assert tree_of(made, 2).tokens.tolist()[0] == 9, "the context has come again"
    made.advance(2, [9])
    made.close(2)
    quiet = fused(runner)
    opened(quiet, [3])
    quiet.row(1, row)
    assert tree_of(quiet).tokens.tolist()[0] == 9, "told, although it may not be kept"
    assert not quiet.members()[1].trust, "nothing is learned of a member that was not asked"


def test_a_session_that_is_behind_is_read_while_nobody_wants_a_tree() -> None:
    passes: list[PassPlan] = []
    made = fused(ToyRunner(COUNTING, before_execute=passes.append), Given(0.001, 1.0))
    opened(made, list(range(READ_AHEAD)))
    assert growths(made, Want(1, 4))[-1].behind is False
    made.advance(1, [READ_AHEAD])
    assert growths(made, Want(1, 4))[-1].behind
    assert not passes, "nobody waits for it"
    assert growths(made, Want(1, 0)) == [Growth(growths(made, Want(1, 0))[0].tree)]
    assert [each.tokens for each in passes] == [READ_AHEAD + 1]
    assert growths(made, Want(1, 4))[-1].behind is False


def test_beyond_the_models_context_text_goes_on_alone() -> None:
    made = fused(ToyRunner(COUNTING, context_length=24))
    opened(made, [*range(20), 0, 1])
    assert 2 in tree_of(made).tokens
    made.advance(1, [2])
    made.advance(1, [3, 4])
    (growth,) = growths(made, Want(1, 8))
    assert growth.tree.tokens.tolist()[:3] == [5, 6, 7]
    opened(made, [1, 2] * 20, session=2)
    assert tree_of(made, 2).tokens.tolist()[:2] == [1, 2]
    assert made.members()[1].left == {"context limit": 2}
    assert [each.sessions for each in made.members()] == [2, 0]
    for session in (1, 2):
        made.close(session)


def test_where_the_model_has_no_room_text_goes_on_alone() -> None:
    runner = ToyRunner(COUNTING, pages=2)
    made = fused(runner)
    opened(made, [1, 2] * 8)
    opened(made, [1, 2] * 12, session=2)
    assert tree_of(made, 2).tokens.tolist()[:2] == [1, 2]
    assert made.members()[1].left == {"no KV page": 1}
    for session in (1, 2):
        made.close(session)
    assert runner.kv.pages_used == 0


def test_a_model_that_fails_for_a_session_is_left_by_that_session(caplog: pytest.LogCaptureFixture) -> None:
    def before(plan: PassPlan) -> None:
        if any(13 in segment.tokens for segment in plan.segments):
            raise RuntimeError("no luck")

    runner = ToyRunner(COUNTING, before_execute=before)
    made = fused(runner)
    opened(made, [5, 13, 6, 5])
    opened(made, [3], session=2)
    wants = [Want(1, 8), Want(2, 8)]
    ends: dict[int, DraftTree] = {}
    while len(ends) < 2:
        left = [want for want in wants if want.session not in ends]
        for want, growth in zip(left, made.propose(left), strict=True):
            if growth is not None and not growth.growing:
                ends[want.session] = growth.tree
    assert ends[1].tokens.tolist()[0] == 13, "what the text says"
    assert ends[2].tokens.tolist()[:3] == [4, 5, 6], "what the model says"
    assert made.members()[1].left == {"failed": 1}
    assert "no luck" in caplog.text
    made.advance(1, [13])
    assert tree_of(made).tokens.tolist()[0] == 6
    for session in (1, 2):
        made.close(session)
    runner.kv.check_integrity()
    assert runner.kv.pages_used == 0


def test_sampled_sessions_are_the_models_alone() -> None:
    options = replace(
        RANKED, proposal=Proposal.SAMPLED, sampling=SamplingParams(temperature=1.0), propose_seed=propose_seed(3, 0)
    )
    made = fused(ToyRunner(GOOD, context_length=32))
    model = ModelProposer(ToyRunner(GOOD), "", max_depth=6, width=4, step_tokens=64, min_path_prob=0.01)
    for each in (made, model):
        opened(each, [3, 4, 5, 3, 4], options=options)
    for token in (5, 9):
        ours, theirs = tree_of(made), tree_of(model)
        assert ours.rows is not None
        assert (ours.tokens.tolist(), ours.parents.tolist()) == (theirs.tokens.tolist(), theirs.parents.tolist())
        for each in (made, model):
            each.advance(1, [token])
    made.close(1)
    assert [each.sessions for each in made.members()] == [0, 0]
    with pytest.raises(ContextTooLong):
        opened(made, [1] * 33, options=options)


@pytest.mark.parametrize("learn", [True, False])
def test_of_a_reply_that_is_not_learned_nothing_outlives_it(learn: bool) -> None:
    reply = drawn(GOOD, 200, 4)
    made = fused(ToyRunner(JUNK))
    rounds(made, reply, options=replace(WARM, learn=learn))
    assert bool(made.members()[0].trust) == learn
    opened(made, [3, 4, 5, 3], options=WARM)
    fresh = fused(ToyRunner(JUNK))
    opened(fresh, [3, 4, 5, 3], options=WARM)
    trees = [growths(each, Want(1, 8))[-1].tree.log_probs for each in (made, fresh)]
    assert (trees[0].tolist() == trees[1].tolist()) != learn


def test_both_members_are_left_when_a_session_closes() -> None:
    store = TextStore(MB)
    runner = ToyRunner(COUNTING)
    made = fused(runner, store=store)
    made.open(1, np.asarray([3], np.int32), 1, replace(RANKED, learn=True))
    tree_of(made)
    made.advance(1, [9, 8, 7])
    made.close(1)
    while store.learn_part():
        continue
    assert runner.kv.pages_used == 0
    assert store.tokens == 3


def test_coupled_trees_go_where_the_noise_points() -> None:
    """A model that is the target, at strength 1: the draw is nearly always the first child, ranked ones hit less."""
    reply = drawn(GOOD, 3, 1)
    hits = {Proposal.COUPLED: 0, Proposal.RANKED: 0}
    for proposal in hits:
        made = fused(ToyRunner(GOOD), max_depth=1)
        for seed in range(150):
            params = SamplingParams(temperature=1.0, seed=seed)
            context = list(reply)
            opened(made, context, options=replace(RANKED, proposal=proposal, strength=1.0, sampling=params))
            for _ in range(3):
                token = SeededChoices(params).draw(Row.from_dense(GOOD[context[-1]]), len(context))
                hits[proposal] += tree_of(made, budget=1).tokens.tolist()[:1] == [token]
                context.append(token)
                made.advance(1, [token])
            made.close(1)
    assert hits[Proposal.COUPLED] > 0.8 * 450
    assert hits[Proposal.COUPLED] > hits[Proposal.RANKED] + 60


def before_by(chance: random.Random, share: float) -> Callable[[PassPlan], None]:
    def before(plan: PassPlan) -> None:
        if chance.random() < share:
            raise RuntimeError("no luck")

    return before


@pytest.mark.parametrize(("pages", "failing"), [(400, 0.0), (20, 0.0), (400, 0.1)])
def test_two_hundred_sessions_leave_nothing(pages: int, failing: float) -> None:
    """With room, with far too little, and with passes that fail: the model comes and goes, sessions do not."""
    runner = ToyRunner(
        random_table(VOCAB), context_length=80, pages=pages, before_execute=before_by(random.Random(4), failing)
    )
    made = fused(runner, max_depth=4)
    seen = desk.drive(made, 200, pages)
    assert seen[None] > 100
    assert seen[Fault.INTERNAL] == seen[Fault.CONTEXT_LIMIT] == 0
    left = made.members()[1].left
    assert left["context limit"] > 5
    assert (left.get("no KV page", 0) > 2) == (pages == 20)
    assert (left.get("failed", 0) > 5) == bool(failing)
    runner.kv.check_integrity()
    assert (runner.kv.pages_used, runner.kv.sequences) == (0, 0)
