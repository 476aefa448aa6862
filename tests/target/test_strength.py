"""The coupling strength that is learned: the tables, a session's share in them, and what changes for a reply."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.server import DrafterServer
from paceline.runtime.toy import ToyRunner
from paceline.speculation.modes import Proposal
from paceline.speculation.tree import DraftTree
from paceline.target.request import DraftWish
from paceline.target.strength import (
    EARLY,
    INFINITE,
    MAX_TABLES,
    REPORT_ROUNDS,
    STRENGTHS,
    TRY_EARLY,
    TRY_LATE,
    Coupling,
    Strengths,
)
from paceline.v1 import common_pb2, target_pb2
from target.rig import plain, random_table, request, running, sampled
from target.wire import Directory, collect, message, speculation, target

VOCAB = 32
TABLE = random_table(VOCAB, seed=41, sharpness=6.0)
PROMPT = [3, 9, 3, 9]
COUPLED = DraftWish(8, Proposal.COUPLED)


def in_force(strengths: Strengths) -> list[float]:
    return [line.strength for line in strengths.lines() if line.in_force]


def played(worth: tuple[float, ...], sessions: int, seed: int = 0) -> tuple[Counter[float], Strengths]:
    """How often each strength was chosen where it is worth so many accepted tokens a round, sessions differing."""
    strengths, rng, chosen = Strengths(), np.random.default_rng(seed), Counter[float]()
    for _ in range(sessions):
        strength = strengths.choose("model", 0.7)
        chosen[strength] += 1
        mean = worth[STRENGTHS.index(strength)] * np.exp(rng.normal(-0.02, 0.2))
        strengths.learn("model", 0.7, strength, 40, int(rng.poisson(40 * mean)))
    return chosen, strengths


def test_the_first_sessions_are_at_2_and_few_try_a_neighbour() -> None:
    strengths = Strengths()
    chosen = [strengths.choose("suffix", 1.0) for _ in range(EARLY + 160)]
    assert chosen[: TRY_EARLY - 1] == [2.0] * (TRY_EARLY - 1)
    tried = Counter(each for each in chosen if each != 2.0)
    assert tried == {1.5: EARLY // TRY_EARLY // 2 + 5, 3.0: EARLY // TRY_EARLY // 2 + 5}
    assert sum(each != 2.0 for each in chosen[EARLY:]) == 160 // TRY_LATE
    assert not strengths.lines(), "nothing was learned"


@pytest.mark.parametrize(
    ("worth", "best"),
    [((1.6, 1.4, 1.2, 1.0, 0.9, 0.8), 1.0), ((0.5, 0.6, 0.7, 0.85, 1.0, 1.2), INFINITE)],
)
def test_the_best_strength_comes_into_force(worth: tuple[float, ...], best: float) -> None:
    """With these seeds; the sessions differ by 20 %, the strengths by 15 %."""
    chosen, strengths = played(worth, 1500)
    assert in_force(strengths) == [best]
    assert chosen.most_common(1)[0][0] == best


def test_trying_costs_little_where_2_is_the_best() -> None:
    worth = (0.86, 0.95, 1.0, 0.97, 0.94, 0.9)
    lost = []
    for seed in range(5):
        chosen, _ = played(worth, 1000, seed)
        lost.append(1 - sum(worth[STRENGTHS.index(each)] * count for each, count in chosen.items()) / 1000)
    assert np.mean(lost) < 0.015


def test_the_same_reports_give_the_same_choices() -> None:
    assert played((0.9, 1.0, 1.1, 1.2, 1.1, 1.0), 300)[0] == played((0.9, 1.0, 1.1, 1.2, 1.1, 1.0), 300)[0]


def test_proposers_and_temperatures_learn_apart_in_bounded_memory() -> None:
    strengths = Strengths()
    for _ in range(40):
        strengths.learn("suffix", 0.7, 3.0, 40, 80)
        strengths.learn("suffix", 0.7, 2.0, 40, 20)
    assert strengths.choose("suffix", 0.7) == 3.0
    assert strengths.choose("suffix", 0.8) == 3.0
    assert strengths.choose("suffix", 1.0) == strengths.choose("model", 0.7) == 2.0
    for number in range(2 * MAX_TABLES):
        strengths.choose(str(number), 5.0)
        strengths.learn(str(number), 5.0, 2.0, 1, 1)
    assert len({(line.proposer, line.temperature_to) for line in strengths.lines()}) == MAX_TABLES
    assert strengths.choose("suffix", 0.7) == 2.0, "forgotten"


def test_a_session_keeps_its_strength_and_reports_it() -> None:
    strengths = Strengths()
    coupling = Coupling(strengths, 1.0, None)
    assert coupling.strength == 0.0
    for _ in range(2 * TRY_EARLY):
        assert coupling.choose("suffix") == 2.0, "opened again"
    for _ in range(REPORT_ROUNDS):
        coupling.walked(1)
    reported = [line.sessions for line in strengths.lines() if line.strength == 2.0]
    assert reported == [1.0], "a long session reports before its end"
    coupling.walked(3)
    coupling.choose("model")  # another drafter: what the first was worth is learned for it
    assert [line.sessions > 1.0 for line in strengths.lines() if line.strength == 2.0] == [True]
    coupling.walked(1)
    coupling.report()
    coupling.report()
    assert [line.accepted for line in strengths.lines() if line.proposer == "model"] == [0, 0, 1, 0, 0, 0]


def test_a_named_strength_is_taken_and_teaches_nothing() -> None:
    strengths = Strengths()
    coupling = Coupling(strengths, 1.0, 0.7)
    assert coupling.choose("suffix") == coupling.strength == 0.7
    coupling.walked(2)
    coupling.report()
    assert not strengths.lines()


def test_the_engine_tells_the_drafter_and_learns_from_walks() -> None:
    wanted = request(PROMPT, 40, wish=COUPLED, sampling=sampled(1.0, 5))
    tokens = plain(ToyRunner(TABLE), wanted)

    def propose(context: list[int], budget: int) -> DraftTree:
        return DraftTree.chain(tokens[len(context) - len(PROMPT) :][:2])

    with running(ToyRunner(TABLE), propose) as rig:
        for _ in range(TRY_EARLY):
            found, finish = rig.decode(wanted)
            assert found == tokens
        opened = [each.strength for each in rig.drafter.opens]
        assert opened == [2.0] * (TRY_EARLY - 1) + [3.0]
        assert finish.stats.strength == 3.0
        named = replace(wanted, wish=replace(COUPLED, strength=1.25))
        assert rig.decode(named)[1].stats.strength == rig.drafter.opens[-1].strength == 1.25
        greedy = request(PROMPT, 4)
        assert rig.decode(greedy)[1].stats.strength == rig.drafter.opens[-1].strength == 0.0
    lines = [line for line in rig.engine.status().strengths if line.sessions]
    assert [(line.strength, line.accepted) for line in lines] == [
        (2.0, pytest.approx(2, abs=0.2)),
        (3.0, lines[1].accepted),
    ]


async def test_tokens_are_those_of_plain_decoding_whatever_is_tried() -> None:
    expected = plain(ToyRunner(TABLE), request(PROMPT, 60, sampling=sampled(0.9, 6)))
    drafter = DrafterServer(DrafterConfig())
    address = await drafter.start()
    params = common_pb2.SamplingParams(temperature=0.9, top_k=0, top_p=1.0, seed=6)
    wanted = message(PROMPT, 60, sampling=params, speculation=speculation(8, proposal=common_pb2.PROPOSAL_COUPLED))
    used = []
    try:
        async with target(ToyRunner(TABLE), Directory(address), draft_deadline_ms=5000.0) as served:
            await served.drafter_state("ready")
            for _ in range(2 * TRY_EARLY):
                tokens, finish = await collect(served.stub.Decode(wanted))
                assert tokens == expected
                used.append(finish.speculation.strength)
            lines = list((await served.stub.GetTargetStatus(target_pb2.GetTargetStatusRequest())).target.strengths)
    finally:
        await drafter.stop(0.0)
    assert Counter(used).keys() >= {2.0, 3.0}
    assert {line.proposer for line in lines} == {"suffix"}
