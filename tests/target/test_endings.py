"""Where replies end, and what is counted then."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InvalidField
from paceline.runtime.stop import StopOutcome
from paceline.runtime.toy import ToyRunner
from paceline.speculation.tree import DraftTree
from paceline.target.ending import Ending
from paceline.target.fallback import Fallback
from paceline.target.finish import FinishReason
from paceline.target.port import DraftFault, Retry
from target import drafters
from target.rig import counting_table, plain, random_table, request, running, sampled

VOCAB = 64
COUNTING = counting_table(VOCAB)


class Words:
    """Stop text over tokens that stand for letters."""

    def __init__(self, letters: str, stops: tuple[str, ...]) -> None:
        self.letters, self.stops, self.text = letters, stops, ""

    def push(self, token: int) -> StopOutcome:
        self.text += self.letters[token]
        found = [(self.text.index(stop), stop) for stop in self.stops if stop in self.text]
        return StopOutcome("", min(found)[1] if found else None)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_eos_at_every_offset_of_a_block(depth: int, temperature: float) -> None:
    """The seventh token is EOS: in the middle of a block, its last token, or the drawn one."""
    table = random_table(VOCAB, seed=3, sharpness=6.0)
    prompt = [5, 9]
    wanted = request(prompt, 30, budget=depth, sampling=sampled(temperature, 4))
    free = plain(ToyRunner(table), wanted)
    eos = free[6]
    assert eos not in free[:6]
    for proposer in (drafters.oracle(prompt, free), drafters.bushy(prompt, free, VOCAB, 1)):
        with running(ToyRunner(table, eos=frozenset({eos, VOCAB - 1 if eos else 0})), proposer) as rig:
            tokens, finish = rig.decode(wanted)
        assert tokens == free[:7]
        assert finish.reason is FinishReason.STOP
        assert finish.completion_tokens == 7
        assert finish.stats.accepted + finish.stats.rounds >= 7
        assert finish.stats.accepted <= 6
    with running(ToyRunner(table, eos=frozenset({eos})), drafters.oracle(prompt, free)) as rig:
        assert (
            rig.decode(request(prompt, 30, budget=depth, sampling=sampled(temperature, 4), ignore_eos=True))[0] == free
        )


@pytest.mark.parametrize(
    ("stops", "expected", "match"),
    [
        (("cd",), "abcd", "cd"),
        (("g",), "abcdefg", "g"),
        (("fgh", "xyz"), "abcdefgh", "fgh"),
        (("bcx", "de"), "abcde", "de"),
        (("ijk",), "abcdefghij", None),  # max_tokens comes first
    ],
)
@pytest.mark.parametrize("budget", [0, 1, 3, 12])
def test_stop_strings_end_the_round(stops: tuple[str, ...], expected: str, match: str | None, budget: int) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz" + "." * VOCAB
    wanted = request([63], 10, budget=budget, stops=stops)
    runner = ToyRunner(counting_table(VOCAB))
    passes_after: list[int] = []
    with running(runner, drafters.oracle([63], list(range(40))), stop_text=lambda stops: Words(letters, stops)) as rig:
        tokens, finish = rig.decode(wanted)
        passes_after.append(rig.engine.counters.totals().passes)
    assert "".join(letters[token] for token in tokens) == expected
    assert finish.stop_match == (match or "")
    assert finish.reason is (FinishReason.STOP if match else FinishReason.LENGTH)
    assert finish.completion_tokens == len(expected)
    assert passes_after[0] == finish.stats.rounds == 1 + -(-(len(expected) - 1) // (budget + 1))


def test_context_limit_with_a_drafter_that_has_a_smaller_one() -> None:
    """Target 64, drafter 48: fills exactly to 64, goes on undrafted beyond 48, same tokens."""
    table = random_table(VOCAB, seed=8)
    for length in (46, 47, 48, 49, 60, 63, 64, 66):
        for max_tokens in (1, 100):
            prompt = [length, *np.random.default_rng(length).integers(0, VOCAB, length - 1).tolist()]
            wanted = request(prompt, max_tokens, budget=15)
            if length >= 64:
                with (
                    running(ToyRunner(table, context_length=64), None) as rig,
                    pytest.raises(InvalidField, match=rf"{length} tokens.*64"),
                ):
                    rig.decode(wanted)
                continue
            expected = plain(ToyRunner(table, context_length=64), wanted)
            assert len(expected) == min(64 - length, max_tokens)
            right = drafters.bushy(prompt, expected, VOCAB, seed=length)

            def propose(context: list[int], budget: int, right=right):
                if len(context) > 48:
                    return DraftFault(0, 0, Fallback.CONTEXT_LIMIT, Retry.NEVER, "too long")
                return right(context, budget)

            with running(ToyRunner(table, context_length=64), propose) as rig:
                tokens, finish = rig.decode(wanted)
                again, _ = rig.decode(request([1], 5))
            assert tokens == expected
            assert finish.reason is FinishReason.LENGTH
            assert set(finish.stats.fallbacks) <= {Fallback.CONTEXT_LIMIT}
            assert len(again) == 5


def test_statistics_count_what_was_delivered() -> None:
    """Accept pattern yes-no-yes-no-yes; twelve nodes of depth four with two accepted; EOS at the fourth of seven."""
    table = counting_table(VOCAB)  # after t comes t + 1

    def one_tree(tree: DraftTree):
        return lambda context, budget: tree if len(context) == 2 else DraftTree.empty()

    with running(ToyRunner(table), one_tree(DraftTree.chain([2, 9, 4, 9, 6]))) as rig:
        tokens, finish = rig.decode(request([0], 10, budget=12))
    assert tokens == list(range(1, 11))
    assert (finish.stats.accepted, finish.stats.drafted, finish.stats.rounds) == (1, 5, 9)

    bush = DraftTree.build([2, 9, 3, 8, 9, 8, 7, 6, 5, 9, 8, 7], [-1, -1, 0, 0, 2, 2, 3, 4, 1, 4, 4, 5])
    assert int(bush.depths.max()) == 4
    with running(ToyRunner(table), one_tree(bush)) as rig:
        tokens, finish = rig.decode(request([0], 10, budget=12))
    assert tokens == list(range(1, 11))
    assert (finish.stats.accepted, finish.stats.drafted, finish.stats.rounds) == (2, 12, 8)

    with running(ToyRunner(table, eos=frozenset({5})), one_tree(DraftTree.chain(range(2, 9)))) as rig:
        tokens, finish = rig.decode(request([0], 30, budget=12))
        totals = rig.engine.counters.totals()
    assert tokens == [1, 2, 3, 4, 5]
    assert (finish.stats.accepted, finish.stats.drafted, finish.stats.rounds) == (4, 7, 2)
    assert (totals.accepted, totals.drafted, totals.emitted) == (4, 7, 5)

    with running(ToyRunner(table), None) as rig:
        tokens, finish = rig.decode(request([0], 6))
    assert (finish.stats.accepted, finish.stats.drafted, finish.stats.rounds) == (0, 0, 6)
    assert dict(finish.stats.fallbacks or {}) == {Fallback.ABSENT: 4}


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 9])
def test_max_tokens_inside_a_block(max_tokens: int) -> None:
    reply = list(range(1, 40))
    with running(ToyRunner(COUNTING), drafters.oracle([0], reply)) as rig:
        tokens, finish = rig.decode(request([0], max_tokens))
    assert tokens == reply[:max_tokens]
    assert finish.reason is FinishReason.LENGTH
    assert finish.stats.rounds + finish.stats.accepted == max_tokens
    assert finish.stats.drafted <= max(max_tokens - 2, 0), "nodes that could not be delivered were verified"


@pytest.mark.parametrize("cut", [1, 5, 11, 12])
def test_resumed_sessions_go_on_where_they_were(cut: int) -> None:
    """Tokens delivered by an earlier replica count, are not sent again, and keep stop strings and noise in place."""
    table = random_table(26, seed=4)
    letters = "abcdefghijklmnopqrstuvwxyz"
    params = sampled(1.0, 77)
    whole = plain(ToyRunner(table), request([3, 4], 30, sampling=params))
    stop = "".join(letters[token] for token in whole[10:13])
    with running(ToyRunner(table), drafters.random_trees(26, 1), stop_text=lambda stops: Words(letters, stops)) as rig:
        full, finish = rig.decode(request([3, 4], 30, sampling=params, stops=(stop,)))
        assert full == whole[:13]
        delivered = np.asarray(full[:cut], dtype=np.int32)
        rest, resumed = rig.decode(request([3, 4], 30, sampling=params, stops=(stop,), delivered=delivered))
        assert rest == full[cut:]
        assert (resumed.reason, resumed.stop_match) == (finish.reason, stop)
        assert (resumed.completion_tokens, resumed.prompt_tokens) == (13, 2)
        nothing, again = rig.decode(
            request([3, 4], 30, sampling=params, stops=(stop,), delivered=np.asarray(full, dtype=np.int32))
        )
        assert nothing == []
        assert (again.reason, again.stop_match) == (FinishReason.STOP, stop)
        at_limit = rig.decode(request([3, 4], cut, sampling=params, delivered=delivered))
    assert at_limit[0] == []
    assert at_limit[1].reason is FinishReason.LENGTH


def test_ending_cuts_once_in_order() -> None:
    ending = Ending(frozenset({9}), None, 5)
    assert ending.cut([1, 2]).reason is None
    assert ending.tokens_left == 3
    assert ending.cut([3, 9, 4]).tokens == (3, 9)
    assert Ending(frozenset(), None, 2).cut([1, 2, 3]).tokens == (1, 2)
    assert Ending(frozenset({2}), None, 2).cut([1, 2, 3]).reason is FinishReason.STOP
    assert Ending(frozenset(), None, 0).cut([]).reason is FinishReason.LENGTH
