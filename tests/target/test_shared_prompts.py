"""Sessions with equal prompts: one reads, the others copy its KV, and every reply is what it is alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.tree import DraftTree
from paceline.target.request import DraftWish, SessionRequest
from target import drafters
from target.rig import PATIENCE_S, Rig, plain, random_table, request, running, sampled

VOCAB = 16
TABLE = random_table(VOCAB, seed=5)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
RULES = [Selection.DRAFT, Selection.RETAIN, Selection.RERANK, Selection.DRAW_FIRST, Selection.AUTO]
LENGTH = 30


class Held:
    """A runner whose first pass is held until the test has submitted; it counts what passes compute."""

    def __init__(self, **settings: int) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.tokens = 0  # computed in later passes
        self.passes = 0
        self.runner = ToyRunner(TABLE, before_execute=self._before, **settings)  # type: ignore[arg-type]

    def _before(self, plan: PassPlan) -> None:
        self.passes += 1
        if self.passes == 1:
            self.reached.set()
            assert self.go.wait(PATIENCE_S)
        else:
            self.tokens += plan.tokens


def together(rig: Rig, held: Held, wanted: Sequence[SessionRequest]) -> list[tuple[list[int], int]]:
    """Tokens and row hits of sessions that are all admitted in the same step."""
    last = rig.submit(request([0], 1, budget=0))[1]  # its pass is the one that is held
    assert held.reached.wait(PATIENCE_S)
    sinks = [rig.submit(each)[1] for each in wanted]
    held.go.set()
    last.wait()
    ends = [sink.wait() for sink in sinks]
    return [(sink.all_tokens, end.stats.row_hits) for sink, end in zip(sinks, ends, strict=True)]


def choices(n: int, prompt: Sequence[int] = PROMPT, temperature: float = 0.9, **fields: object) -> list[SessionRequest]:
    params = sampled(temperature, 7)
    budget = {} if "wish" in fields else {"budget": 0}
    return [
        request(prompt, LENGTH, sampling=replace(params, choice=choice), **budget, **fields)  # type: ignore[arg-type]
        for choice in range(n)
    ]


def alone(wanted: Sequence[SessionRequest]) -> list[list[int]]:
    return [plain(ToyRunner(TABLE), replace(each, wish=DraftWish())) for each in wanted]


@pytest.mark.parametrize("step", [8, 256])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 20])
@pytest.mark.parametrize("cached", [True, False])
def test_the_prompt_is_computed_once(cached: bool, length: int, step: int) -> None:
    """Whether the prompt is read in one pass or many, ends with a page or not, has a row in the cache or not."""
    wanted, n, held = choices(5, PROMPT[:length]), 5, Held()
    with running(held.runner, None, step_tokens=step, max_sessions=8, row_cache_mb=1 if cached else 0) as rig:
        found = together(rig, held, wanted)
        totals = rig.engine.status().totals
    assert [tokens for tokens, _ in found] == alone(wanted)
    if cached and length > 1:
        assert [hits for _, hits in found] == [0, 1, 1, 1, 1]
        assert totals.shared_prompt_tokens == 4 * length
        assert held.tokens == length + n * (LENGTH - 1)
    elif length > 1:  # the last token of the prompt gives each its row
        assert totals.row_hits == 0
        assert totals.shared_prompt_tokens == 4 * (length - 1)
        assert held.tokens == length + 4 + n * (LENGTH - 1)
    else:
        assert held.tokens == n * LENGTH, "a prompt of one token is not worth a wait"


def test_one_that_comes_later_copies_from_one_that_is_under_way() -> None:
    first, second = choices(2)
    with running(ToyRunner(TABLE), None) as rig:
        session, sink = rig.submit(replace(first, max_tokens=4000))
        sink.wait_deltas(20)
        tokens, finish = rig.decode(second)
        assert rig.engine.status().totals.shared_prompt_tokens == len(PROMPT)
        rig.engine.cancel(session)
    assert [tokens] == alone([second])
    assert finish.stats.row_hits == 1


def test_other_processing_shares_the_prompt_and_not_the_row() -> None:
    held = Held()
    wanted = [choices(1, temperature=warm)[0] for warm in (0.0, 0.5, 1.0)]
    with running(held.runner, None) as rig:
        found = together(rig, held, wanted)
        assert rig.engine.status().totals.shared_prompt_tokens == 2 * (len(PROMPT) - 1)
    assert found == [(tokens, 0) for tokens in alone(wanted)]


def test_prompts_that_only_begin_alike_share_nothing() -> None:
    held = Held()
    wanted = [request(prompt, LENGTH, budget=0) for prompt in (PROMPT, PROMPT[:-1], [*PROMPT, 1], PROMPT[::-1])]
    with running(held.runner, None) as rig:
        found = together(rig, held, wanted)
        assert rig.engine.status().totals.shared_prompt_tokens == 0
    assert [tokens for tokens, _ in found] == alone(wanted)


def test_replies_that_go_on_from_an_earlier_replica_share_the_prompt() -> None:
    held = Held()
    wanted = choices(3)
    whole = alone(wanted)
    resumed = [
        replace(each, delivered=np.asarray(tokens[:done], dtype=np.int32))
        for each, tokens, done in zip(wanted, whole, (7, 0, 3), strict=True)
    ]
    with running(held.runner, None) as rig:
        found = together(rig, held, resumed)
        assert rig.engine.status().totals.shared_prompt_tokens == 2 * len(PROMPT) - 1
    assert [tokens for tokens, _ in found] == [whole[0][7:], whole[1], whole[2][3:]]


@pytest.mark.parametrize("how", ["cancel", "fault", "ends"])
def test_another_reads_where_the_one_that_reads_leaves(how: str) -> None:
    """It is cancelled half way, its computation fails, or its reply is over before anybody could copy."""
    held = Held()
    wanted = choices(4)
    reading: list[int] = []

    def before(plan: PassPlan) -> None:
        inner(plan)
        if held.passes == 3 and not reading:
            reading.append(plan.segments[-1].sequence)
            if how == "cancel":
                rig.engine.cancel(2)
        if how == "fault" and any(segment.sequence in reading for segment in plan.segments):
            raise RuntimeError("as told")

    inner: Callable[[PassPlan], None] = held._before
    held.runner._before_execute = before
    if how == "ends":
        wanted[0] = replace(wanted[0], max_tokens=1)
    with running(held.runner, None, prefill_chunk=4, step_tokens=64 if how == "ends" else 5, max_sessions=5) as rig:
        last = rig.submit(request([0], 2 if how == "ends" else 400, budget=0))[1]
        assert held.reached.wait(PATIENCE_S)
        sinks = [rig.submit(each)[1] for each in wanted]
        held.go.set()
        for sink in (last, *sinks[1:]):
            sink.wait()
    assert [sink.all_tokens for sink in sinks[1:]] == alone(wanted[1:])
    assert len(sinks[0].all_tokens) == (1 if how == "ends" else 0)


def test_a_reader_that_is_behind_holds_up_nobody_with_the_same_prompt() -> None:
    """It has its first token from the cache and nothing of its prompt; the next one reads for itself."""
    first, second, third = choices(3)
    with running(ToyRunner(TABLE), None) as rig:
        rig.decode(first)
        session, slow = rig.submit(second, limit=1)
        slow.wait_deltas(1)
        assert rig.decode(third)[0] == alone([third])[0]
        assert not slow.done.is_set()
        slow.limit = None
        rig.engine.resume(session)
        slow.wait()
    assert slow.all_tokens == alone([second])[0]


def bushy(context: list[int], budget: int) -> DraftTree:
    generator = np.random.default_rng([len(context), *context[-3:]])
    tree = drafters.random_tree(generator, VOCAB, budget)
    return DraftTree.build(tree.tokens.tolist(), tree.parents.tolist(), (-generator.random(len(tree)) * 3).tolist())


@pytest.mark.parametrize("wait", list(WaitFor))
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafted_replies_are_what_each_is_alone(temperature: float, rule: Selection, wait: WaitFor) -> None:
    held = Held()
    wish = DraftWish(6, Proposal.RANKED, selection=rule, wait=wait)
    wanted = choices(4, temperature=temperature, wish=wish)
    with running(held.runner, bushy) as rig:
        found = together(rig, held, wanted)
    assert found == [(tokens, min(index, 1)) for index, tokens in enumerate(alone(wanted))]


def test_a_row_found_is_drawn_at_once_while_another_reads_the_prompt() -> None:
    """An answer in the cache is not held up by a prompt that is read for others."""
    seen: list[int] = []
    gate = threading.Event()
    held = threading.Event()

    def before(plan: PassPlan) -> None:
        seen.append(plan.tokens)
        if len(seen) == 2:
            held.set()
            assert gate.wait(PATIENCE_S)

    first, second = choices(2)
    cold = choices(1, temperature=0.0)[0]
    with running(ToyRunner(TABLE, before_execute=before), None, prefill_chunk=4, step_tokens=64) as rig:
        rig.decode(replace(first, max_tokens=1))
        busy = rig.submit(request([0], 200, budget=0))[1]
        assert held.wait(PATIENCE_S)
        other = rig.submit(cold)[1]  # reads in chunks of four beside the busy one
        hit = rig.submit(second)[1]
        gate.set()
        for sink in (busy, other, hit):
            sink.wait()
        order = [record.session for record in rig.records]
    assert order.index(4) < order.index(3), "its first token comes before the other has read"
    assert [other.all_tokens, hit.all_tokens] == alone([cold, second])
