"""The nucleus study: its decoding against plain decoding, its laws against formulas, and a small run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import TextStore
from paceline.runtime.costs import PassCosts
from paceline.runtime.toy import ToyRunner
from paceline.runtime.toy_tokenizer import ToyTokenizer
from paceline.speculation.modes import Proposal
from paceline.speculation.nucleus import Nucleus
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import DraftTree
from paceline.study.decoding import decode
from paceline.study.deviation import DeviationSettings, deviation_rows, one_step_error
from paceline.study.nucleus import Bench, Drafter, NucleusSettings, Texts
from paceline.study.nucleus_report import Series, limit_row, series_rows
from paceline.study.reply import plain_replies
from paceline.study.session_drafts import RankedDrafts, SampledModel, SampledSuffix
from paceline.study.tasks import Task, tasks

RNG = np.random.default_rng(5)
TABLE = RNG.dirichlet(np.full(4, 0.8), size=4)
OTHER = 0.5 * TABLE + 0.5 * RNG.dirichlet(np.full(4, 0.8), size=4)
PROMPTS = [[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3]]


class NoDrafts:
    seconds = 0.0

    def open(self, session: int, prompt: Sequence[int], params: SamplingParams) -> None:
        pass

    def trees(self, wanted: Mapping[int, int]) -> dict[int, DraftTree]:
        return dict.fromkeys(wanted, DraftTree.empty())

    def advance(self, session: int, tokens: Sequence[int]) -> None:
        pass

    def close(self, session: int) -> None:
        pass


def suffix(budget: int = 4) -> RankedDrafts:
    return RankedDrafts(SuffixProposer(TextStore(0), 4, 0.0), None, 4, frozenset(), budget)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_exact_rule_decodes_what_plain_decoding_does(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=9)
    runner = ToyRunner(TABLE)
    plain = decode(runner, NoDrafts(), PROMPTS, params, Nucleus(0.0), 30)
    drafted = decode(runner, suffix(), PROMPTS, params, Nucleus(0.0), 30)
    assert [each.tokens for each in drafted] == [each.tokens for each in plain]
    assert all(each.rounds == 30 and each.accepted == 0 for each in plain)
    assert all(each.rounds == len(each.sizes) == 30 - each.accepted for each in drafted)
    assert sum(each.accepted for each in drafted) > 0
    assert all(each.relaxed == each.ledger.spent == 0 for each in drafted)
    assert [each.log_prob for each in drafted] == pytest.approx([each.log_prob for each in plain])
    if temperature == 0:
        assert [each.tokens for each in plain] == plain_replies(runner, PROMPTS, params, 30)
    assert runner.kv.pages_used == 0


@pytest.mark.parametrize("kind", ["model", "suffix"])
def test_sampled_drafts_keep_the_law(kind: str) -> None:
    """A G-test on the first two tokens of 3000 replies, false alarm 1e-6."""
    runner = ToyRunner(TABLE)
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, 3000, 250):
        drafts = SampledModel(ToyRunner(OTHER), frozenset(), 4, 3) if kind == "model" else SampledSuffix(suffix(), 4, 3)
        params = SamplingParams(temperature=1.0, seed=1000 + start)
        replies = decode(runner, drafts, [PROMPTS[0]] * 250, params, Nucleus(0.0), 3)
        counts.update(tuple(each.tokens[:2]) for each in replies)
        assert sum(each.accepted for each in replies) > 0
    expected = {(a, b): 3000 * TABLE[1, a] * TABLE[a, b] for a in range(4) for b in range(4)}
    pairs = [(counts[key], each) for key, each in expected.items() if each > 0]
    statistic = 2 * sum(found * np.log(found / each) for found, each in pairs if found)
    assert stats.chi2.sf(statistic, len(pairs) - 1) > 1e-6


def test_limits_hold_in_decoded_replies() -> None:
    runner = ToyRunner(TABLE)
    params = SamplingParams(temperature=1.0, seed=3)
    free = decode(runner, suffix(), PROMPTS * 10, params, Nucleus(0.9), 40)
    assert np.mean([each.relaxed for each in free]) == pytest.approx(
        np.mean([each.ledger.spent for each in free]), rel=0.3
    )
    for rule in (Nucleus(0.9, max_deviation=0.5), Nucleus(0.9, max_relaxations=1)):
        held = decode(runner, suffix(), PROMPTS * 10, params, rule, 40)
        assert all(each.ledger.spent <= (rule.max_deviation or np.inf) + 1e-12 for each in held)
        assert all(each.relaxed <= (1 if rule.max_relaxations else 40) for each in held)
        assert any(each.ledger.withheld for each in held)
        assert sum(each.rounds for each in held) > sum(each.rounds for each in free)


def test_deviation_is_the_drafters_excess_and_stays_below_what_is_booked() -> None:
    settings = DeviationSettings(tables=2, vocab=3)
    assert one_step_error((0.0, 0.5, 0.9), settings) < 1e-9
    rows = deviation_rows((0.0, 0.9), settings, lambda _: None)
    assert all(row["bound_holds"] for row in rows)
    assert all(row["tv_max"] < 1e-6 for row in rows if row["mass"] == 0)  # weights travel as float32, the law is exact
    assert all(row["tv_mean"] > 0.01 for row in rows if row["mass"] == 0.9 and row["max_deviation"] == "none")
    assert all(row["spent_max"] <= 0.1 for row in rows if row["max_deviation"] == 0.1)


def test_tasks_are_checked_by_whole_words() -> None:
    task = Task("yes or no", "?", "no", ("yes",))
    assert task.solved("No, she lives in Oslo.")
    assert not task.solved("Yes. No.")
    assert not task.solved("Nobody knows")
    made = tasks(2, 7)
    assert made == tasks(2, 7) != tasks(2, 8)
    assert all(each.solved(each.answer) for each in made)
    assert len({each.kind for each in made}) == 6


def test_a_small_bench_fills_its_tables() -> None:
    settings = NucleusSettings(masses=(0.0, 0.9), new_tokens=12, task_tokens=4, budget=4, max_depth=3)
    task = Task("t", "?", "x")
    texts = Texts(PROMPTS, [task], [PROMPTS[1]], ToyTokenizer.numbered(4))
    bench = Bench(ToyRunner(TABLE), texts, settings)
    costs = PassCosts({1: 1.0, 8: 2.0})
    for drafter in (
        Drafter("suffix", Proposal.RANKED, None),
        Drafter("suffix", Proposal.SAMPLED, None),
        Drafter("toy", Proposal.RANKED, ToyRunner(OTHER)),
        Drafter("toy", Proposal.SAMPLED, ToyRunner(OTHER)),
    ):
        cells = {mass: bench.cell(drafter, 1.0, mass) for mass in settings.masses}
        exact, relaxed = series_rows(Series("toy", drafter.name, drafter.proposal, 1.0, cells), costs)
        assert (exact["over_exact"], exact["relaxed_share"], exact["unchanged"]) == (1.0, 0.0, 1.0)
        assert relaxed["tokens_per_pass"] >= exact["tokens_per_pass"] >= 1.0
        assert relaxed["relaxed_share"] > 0
        row = limit_row(drafter.name, drafter.proposal, 1.0, bench.limited(drafter, 1.0, settings.limits()[1]))
        assert row["within"]
        assert row["limit"] == "max_deviation 0.5"
