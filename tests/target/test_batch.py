"""Many sessions in one pass: nobody's tokens depend on the company."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.runtime.toy import ToyRunner
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.target.fallback import Fallback
from target import drafters
from target.rig import plain, random_table, request, running, sampled

VOCAB = 32
TABLE = random_table(VOCAB, seed=9)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_rows_that_accept_different_lengths(order: tuple[int, ...]) -> None:
    """Row k accepts exactly k tokens per round; row 2 sometimes gets an empty tree."""
    generator = np.random.default_rng(1)
    prompts = [[k, *generator.integers(0, VOCAB, length - 1).tolist()] for k, length in enumerate((3, 5, 17, 64))]
    params = [SamplingParams(), sampled(0.9, 5), SamplingParams(), sampled(0.9, 6)]
    wanted = [request(prompts[k], 40, sampling=params[k]) for k in range(4)]
    alone = [plain(ToyRunner(TABLE), each) for each in wanted]
    proposers = [drafters.accepting(prompts[k], alone[k], VOCAB, accepted=k) for k in range(4)]
    rounds = iter(range(10_000))

    def propose(context: list[int], budget: int) -> DraftTree:
        row = context[0]
        if row == 2 and next(rounds) % 3 == 0:
            return DraftTree.empty()
        return proposers[row](context, budget)

    with running(ToyRunner(TABLE), propose, prefill_chunk=8) as rig:
        sinks = {k: rig.submit(wanted[k])[1] for k in order}
        finishes = {k: sinks[k].wait() for k in order}
    for k in range(4):
        assert sinks[k].all_tokens == alone[k], f"row {k}"
        assert not finishes[k].stats.fallbacks
        assert finishes[k].stats.rounds + finishes[k].stats.accepted == 40
    for k in (0, 1, 3):
        whole = [record for record in rig.records if record.request_id == "" and len(record.tree) == k + 1]
        assert whole
    for record in rig.records:
        if record.session == 1 + order.index(3) and len(record.tree) == 4:
            assert record.accepted == (0, 1, 2)


def test_many_sessions_share_passes() -> None:
    with running(ToyRunner(TABLE), drafters.random_trees(VOCAB, 0), max_sessions=16) as rig:
        wanted = [request([k, k], 50, sampling=sampled(1.0, k)) for k in range(16)]
        sinks = [rig.submit(each)[1] for each in wanted]
        for sink in sinks:
            sink.wait()
        passes = rig.engine.counters.totals().passes
    assert [sink.all_tokens for sink in sinks] == [plain(ToyRunner(TABLE), each) for each in wanted]
    assert passes < 16 * 50 / 4


def test_load_switches_drafting_down_and_off() -> None:
    """Six sessions in passes of eight tokens leave no room for trees; a lone one has it."""
    wanted = [request([k], 30) for k in range(6)]
    alone = [plain(ToyRunner(TABLE), each) for each in wanted]
    proposers = [drafters.oracle([k], alone[k]) for k in range(6)]

    def propose(context: list[int], budget: int) -> DraftTree:
        assert 1 <= budget <= 7
        return proposers[context[0]](context, budget)

    seen: list[int] = []
    runner = ToyRunner(TABLE, before_execute=lambda plan: seen.append(plan.tokens))
    with running(runner, propose, step_tokens=8, max_sessions=6, prefill_chunk=8) as rig:
        sinks = [rig.submit(each)[1] for each in wanted]
        finishes = [sink.wait() for sink in sinks]
        crowded = dict(rig.engine.counters.totals().fallbacks)
        alone_again = rig.decode(wanted[0])
    assert max(seen) <= 8
    assert [sink.all_tokens for sink in sinks] == alone
    assert set(crowded) == {Fallback.LOAD}
    assert sum(finish.stats.fallbacks.get(Fallback.LOAD, 0) for finish in finishes) == crowded[Fallback.LOAD] > 30
    assert alone_again[0] == alone[0]
    assert not alone_again[1].stats.fallbacks
    assert alone_again[1].stats.accepted > 20


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    """While 400 tokens are read in chunks of 16 the other session gets a token in every pass."""
    passes: list[tuple[int, ...]] = []
    runner = ToyRunner(
        TABLE, before_execute=lambda plan: passes.append(tuple(len(segment) for segment in plan.segments))
    )
    with running(runner, None, prefill_chunk=16) as rig:
        first = rig.submit(request([1], 300))[1]
        first.wait_deltas(5)
        before = len(passes)
        second = rig.submit(request([2] * 400, 5))[1]
        second.wait()
        first.wait()
    together = [sizes for sizes in passes[before:] if len(sizes) == 2]
    assert len(together) >= 25
    assert all(sizes[0] == 1 and sizes[1] <= 16 for sizes in together)


def test_a_lone_prompt_is_read_in_few_passes() -> None:
    passes: list[int] = []
    runner = ToyRunner(TABLE, before_execute=lambda plan: passes.append(plan.tokens))
    plain(runner, request([2] * 400, 1), prefill_chunk=16, step_tokens=256)
    assert passes == [256, 144]


def test_a_session_without_drafting_is_never_drafted() -> None:
    def propose(context: list[int], budget: int) -> DraftTree:
        raise AssertionError("asked for a tree")

    with running(ToyRunner(TABLE), propose) as rig:
        _, finish = rig.decode(request([1], 20, budget=0))
        assert not rig.drafter.opens
    assert finish.stats.rounds == 20
    assert not finish.stats.fallbacks
