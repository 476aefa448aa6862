"""Whatever the drafter says, and whenever, the tokens are those of plain decoding."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.runtime.toy import ToyRunner
from paceline.speculation.choices import SeededChoices
from paceline.speculation.rows import Row
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from paceline.target.port import DraftFault, Retry, TreeArrived
from target import drafters
from target.rig import plain, random_table, request, running, sampled

VOCAB = 16
PROMPT = [3, 1, 4, 1, 5]
TABLE = random_table(VOCAB, seed=5)
PARAMS = [SamplingParams(), sampled(0.7, 11), sampled(1.0, 2**64 - 1, top_p=0.9), sampled(1.3, 7, top_k=4)]


def by_hand(prompt: list[int], params: SamplingParams, count: int) -> list[int]:
    """Draws from the table itself, by the request's noise; independent of engine and row processing."""
    assert params.top_p == 1.0
    assert params.top_k == 0
    tokens = list(prompt)
    choices = SeededChoices(params)
    for _ in range(count):
        probs = TABLE[tokens[-1]].astype(np.float32).astype(np.float64)
        if params.greedy:
            tokens.append(int(np.argmax(probs)))
            continue
        probs = probs ** (1 / params.temperature)
        tokens.append(choices.draw(Row.from_dense(probs / probs.sum()), len(tokens)))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("params", PARAMS[:2])
def test_plain_decoding_draws_from_the_table(params: SamplingParams) -> None:
    assert plain(ToyRunner(TABLE), request(PROMPT, 60, sampling=params)) == by_hand(PROMPT, params, 60)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("kind", ["oracle", "bushy", "random", "wrong", "empty", "silent"])
def test_equal_to_plain(params: SamplingParams, kind: str) -> None:
    wanted = request(PROMPT, 80, sampling=params)
    expected = plain(ToyRunner(TABLE), wanted)
    propose = {
        "oracle": drafters.oracle(PROMPT, expected),
        "bushy": drafters.bushy(PROMPT, expected, VOCAB, seed=1),
        "random": drafters.random_trees(VOCAB, seed=2),
        "wrong": drafters.accepting(PROMPT, expected, VOCAB, accepted=0),
        "empty": lambda context, budget: DraftTree.empty(),
        "silent": lambda context, budget: None,
    }[kind]
    with running(ToyRunner(TABLE), propose, draft_deadline_ms=5.0 if kind == "silent" else 5000.0) as rig:
        tokens, finish = rig.decode(wanted)
    assert tokens == expected
    stats = finish.stats
    assert stats.rounds + stats.accepted == 80
    if kind == "oracle":
        assert stats.rounds == 1 + -(-79 // 9)  # the first token, then nine a round
    if kind == "silent":
        assert set(stats.fallbacks) == {Fallback.LATE, Fallback.SUSPENDED}
        assert sum(stats.fallbacks.values()) == 78  # not the first token, nor the last, which no draft could help
    else:
        assert not stats.fallbacks


@pytest.mark.parametrize("params", PARAMS)
def test_late_trees_are_used_below_what_was_emitted(params: SamplingParams) -> None:
    """Every tree comes while the pass runs that was not to wait for it any longer."""
    wanted = request(PROMPT, 80, sampling=params)
    expected = plain(ToyRunner(TABLE), wanted)
    right = drafters.oracle(PROMPT, expected)
    held: list[TreeArrived] = []
    runner = ToyRunner(TABLE, before_execute=lambda plan: deliver())
    with running(runner, lambda context, budget: None, draft_deadline_ms=3.0, probe_ms=60_000.0) as rig:
        drafter = rig.drafter

        def answer(session: int, budget: int) -> None:
            context = list(drafter.contexts[session])
            at = drafter.clock() + 1.0  # past any deadline
            held.append(TreeArrived(session, drafter.epochs[session], len(context), right(context, budget), at))

        def deliver() -> None:
            drafter.inbox.post(held)
            held.clear()

        drafter.answer = answer  # type: ignore[method-assign]
        tokens, finish = rig.decode(wanted)
    assert tokens == expected
    assert finish.stats.accepted > 50
    assert finish.stats.rounds + finish.stats.accepted == 80
    assert set(finish.stats.fallbacks) <= {Fallback.LATE, Fallback.SUSPENDED}


def test_trees_of_another_length_or_session_are_harmless() -> None:
    wanted = request(PROMPT, 60, sampling=PARAMS[1])
    expected = plain(ToyRunner(TABLE), wanted)
    generator = np.random.default_rng(3)
    with running(ToyRunner(TABLE), lambda context, budget: None, draft_deadline_ms=2.0, suspend_after=1000) as rig:
        drafter = rig.drafter

        def answer(session: int, budget: int) -> TreeArrived:
            tree = drafters.random_tree(generator, VOCAB, budget)
            length = int(generator.integers(-2, len(drafter.contexts[session]) + 4))
            epoch = drafter.epochs[session] + int(generator.integers(-1, 2))
            return TreeArrived(session + int(generator.integers(0, 2)), epoch, length, tree, drafter.clock())

        drafter.answer = answer  # type: ignore[method-assign]
        tokens, finish = rig.decode(wanted)
        assert tokens == expected
        assert rig.engine.counters.totals().stale_frames > 0
    assert finish.stats.fallbacks[Fallback.INVALID] > 0


@pytest.mark.parametrize("retry", list(Retry))
@pytest.mark.parametrize("reason", [Fallback.EVICTED, Fallback.INTERNAL, Fallback.TOKENIZER_MISMATCH])
def test_faults_cost_rounds_and_nothing_else(retry: Retry, reason: Fallback) -> None:
    wanted = request(PROMPT, 40)
    expected = plain(ToyRunner(TABLE), wanted)
    right = drafters.oracle(PROMPT, expected)
    turns = iter(range(1000))

    def propose(context: list[int], budget: int):
        return DraftFault(0, 0, reason, retry, "as told") if next(turns) % 2 == 0 else right(context, min(budget, 2))

    with running(ToyRunner(TABLE), propose) as rig:
        tokens, finish = rig.decode(wanted)
        opens = len(rig.drafter.opens)
    assert tokens == expected
    assert set(finish.stats.fallbacks) == {reason}
    if retry is Retry.ASK:
        assert opens == 1
        assert finish.stats.accepted > 10
    if retry is Retry.REOPEN:
        assert opens > 3
    if retry is Retry.NEVER:
        assert opens == 1
        assert finish.stats.accepted == 0
