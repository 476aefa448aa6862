"""Rows below contexts: those of a fresh read, whatever the passes before have done together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paceline.drafter.model_rows import Look, ModelRows
from paceline.drafter.proposer import DraftOptions
from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan
from paceline.runtime.toy import ToyRunner
from paceline.runtime.transformers_runner import TransformersRunner, load_runner
from paceline.speculation.modes import Proposal
from paceline.speculation.propose import Candidates
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.select import Path
from support.tiny import tiny_model
from target.rig import counting_table

VOCAB = 64
OPTIONS = DraftOptions(Proposal.RANKED, 2.0, SamplingParams(), frozenset(), VOCAB, True)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TransformersRunner:
    return load_runner(ModelSpec(str(tiny_model(tmp_path_factory.mktemp("rows")))), 2048, measure_s=0.0)


def fresh_row(rows: ModelRows, context: list[int]) -> Candidates:
    rows.open(99, np.asarray(context, np.int32), OPTIONS)
    rows.run([Look(99)])
    found = rows.below(99)[()]
    rows.close(99)
    return found


def some_paths(chance: random.Random, known: set[Path]) -> list[Path]:
    """New paths, every parent among them, known, or the context."""
    paths: list[Path] = []
    for _ in range(chance.randrange(4)):
        above = chance.choice([(), *known, *paths])
        path = (*above, chance.randrange(VOCAB))
        if path not in known and path not in paths:
            paths.append(path)
    return paths


def test_rows_are_those_of_a_fresh_read_whatever_was_run_together(runner: TransformersRunner) -> None:
    chance = random.Random(7)
    rows, fresh = ModelRows(runner, 24), ModelRows(runner, 256)
    contexts = {1: [1, 2, 3], 2: list(range(40))}
    for session, context in contexts.items():
        rows.open(session, np.asarray(context, np.int32), OPTIONS)
    compared = together = 0
    for _ in range(60):
        looks = []
        for session in contexts:
            paths = some_paths(chance, set(rows.below(session)) - {()})
            together += bool(rows.missing(session) and paths)
            looks.append(Look(session, paths))
        rows.run(chance.sample(looks, chance.randint(1, 2)))
        for session, context in contexts.items():
            for path, found in rows.below(session).items():
                if chance.random() < 0.2:
                    expected = fresh_row(fresh, [*context, *path])
                    assert found.tokens[:8].tolist() == expected.tokens[:8].tolist()
                    assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-3)
                    compared += 1
            if chance.random() < 0.5:
                known = [path for path in rows.below(session) if path]
                path = chance.choice(known) if known and chance.random() < 0.7 else ()
                emitted = [*path, chance.randrange(VOCAB)][: chance.randint(1, 9)]
                rows.advance(session, emitted)
                context += emitted
        runner.kv.check_integrity()
    assert compared > 60
    assert together > 20, "passes that read and looked"
    for session in contexts:
        rows.close(session)
    assert runner.kv.pages_used == 0


def test_what_a_pass_kept_of_the_context_is_not_run_again() -> None:
    plans: list[PassPlan] = []
    rows = ModelRows(ToyRunner(counting_table(VOCAB, 0.9), before_execute=plans.append), 64)
    rows.open(1, np.asarray([1, 2, 3], np.int32), OPTIONS)
    rows.run([Look(1, [(4,), (9,), (4, 5)])])
    assert [each.tokens for each in plans] == [6], "the context and three paths"
    assert rows.below(1)[(4, 5)].tokens[0] == 6
    rows.advance(1, [4, 5, 6])
    assert rows.missing(1) == 1, "only the token that was not on a path"
    rows.run([Look(1)])
    assert plans[-1].tokens == 1
    rows.advance(1, [7])
    rows.run([Look(1, [(8,)])])
    assert rows.below(1)[(8,)].tokens[0] == 9


def test_paths_find_no_room_before_their_context_is_read() -> None:
    rows = ModelRows(ToyRunner(counting_table(VOCAB, 0.9)), 4)
    rows.open(1, np.arange(6, dtype=np.int32), OPTIONS)
    rows.run([Look(1, [(6,), (6, 7)])])
    assert (rows.missing(1), dict(rows.below(1))) == (2, {})
    assert rows.run([Look(1, [(6,), (6, 7), (8,)])]).tokens == 4
    assert set(rows.below(1)) == {(), (6,), (6, 7)}


def test_a_pass_that_fails_costs_what_it_ran_and_nothing_else() -> None:
    broken = False

    def before(plan: PassPlan) -> None:
        if broken:
            raise RuntimeError("no luck")

    rows = ModelRows(ToyRunner(counting_table(VOCAB, 0.9), before_execute=before), 64)
    rows.open(1, np.asarray([1, 2], np.int32), OPTIONS)
    rows.run([Look(1, [(3,)])])
    broken = True
    with pytest.raises(RuntimeError, match="no luck"):
        rows.run([Look(1, [(3, 4)])])
    broken = False
    assert set(rows.below(1)) == {()}
    assert rows.missing(1) == 2, "the context was in the scratch"
    rows.run([Look(1, [(3,), (3, 4)])])
    assert rows.below(1)[(3, 4)].tokens[0] == 5
    rows.advance(1, [3, 4])
    assert rows.missing(1) == 0
