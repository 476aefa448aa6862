"""Decoding in a model of costs: no clock, no threads. The budgets, the cut and the calibration are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from paceline.runtime.costs import PassCosts
from paceline.speculation.modes import Proposal, Selection, WaitFor
from paceline.speculation.tree import DraftTree
from paceline.target.budget import Budgets
from paceline.target.calibration import Calibration
from paceline.target.context import Context
from paceline.target.grant import Grant
from paceline.target.pace import Pace
from paceline.target.plan import Load
from paceline.target.request import DraftWish
from paceline.target.session_budget import SessionBudget
from paceline.target.turn import Turn
from paceline.target.worth import path_probs, worthwhile

VOCAB = 50
STEP_TOKENS = 256

# (position) -> chance that the drafter knows the token there
Quality = Callable[[int], float]


@dataclass(frozen=True)
class World:
    """What drafting and passes cost, and how good drafters are."""

    costs: PassCosts
    quality: Sequence[Quality]  # of each session
    claimed: float | None = None  # probability the drafter gives its guesses; None: it knows its quality; < 0: none
    fixed_s: float = 0.001  # from asking to a tree, and
    level_s: float = 0.0  # for each level of it
    depth: int = 8  # deepest level
    slower: float = 1.0  # passes take so many times what the table says, and
    overhead_s: float = 0.0  # so much more
    beside_s: float = 0.0  # what a drafter on the same cores takes from a step for each tree that nobody waits for
    leftover: float = 1.0  # times as long as others that passes take after trees for several sessions were waited for


@dataclass
class SimSession:
    """What budgets, turns and the cut see of a session."""

    request: SimpleNamespace
    context: Context
    right: np.ndarray  # [positions] bool, whether the drafter knows the token there
    quality: Quality
    calibration: Calibration = field(default_factory=Calibration)
    rounds: int = 1
    grant: Grant = field(default_factory=lambda: Grant(0))
    budget: SessionBudget | None = None
    round: None = None
    pace: Pace = field(default_factory=Pace)
    useful_depth: int = 64
    came: DraftTree | None = None  # the tree for the context as it is
    drafting: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.drafting = SimpleNamespace(suspended=False, unheard=False, held=True, fresh=lambda length: self.came)

    def tree(self, nodes: int, world: World) -> DraftTree:
        """A chain that is right until the first position whose token the drafter does not know."""
        length = len(self.context)
        at = range(length, length + min(nodes, world.depth))
        tokens = [each % VOCAB if self.right[each] else (each + 1) % VOCAB for each in at]
        if world.claimed is not None and world.claimed < 0:
            return DraftTree.build(tokens, range(-1, len(tokens) - 1))
        probs = [world.claimed if world.claimed is not None else self.quality(each) for each in at]
        return DraftTree.build(tokens, range(-1, len(tokens) - 1), np.log(np.maximum(probs, 1e-6)).tolist())


@dataclass(frozen=True)
class Run:
    """What a simulation gave."""

    tokens: int
    seconds: float
    nodes: list[list[int]]  # asked for, by session and round
    reasons: list[str]
    probes: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def wish(budget: int | str, proposal: Proposal = Proposal.RANKED) -> DraftWish:
    most = 64 if budget == "auto" else int(budget)
    return DraftWish(most, proposal, selection=Selection.DRAFT, wait=WaitFor.DEADLINE, auto=budget == "auto")


def session(world: World, number: int, tokens: int, wanted: DraftWish) -> SimSession:
    positions = tokens + 200
    chance = np.random.default_rng(number).random(positions)
    quality = world.quality[number % len(world.quality)]
    request = SimpleNamespace(
        wish=wanted, nucleus=None, sampling=SimpleNamespace(greedy=True), shares_outcome=not wanted.sampled
    )
    right = chance < np.asarray([quality(each) for each in range(positions)])
    return SimSession(request, Context(np.zeros(1, np.int32), np.zeros(0, np.int32), positions), right, quality)


def simulate(world: World, budget: int | str, sessions: int, tokens: int, budgets: Budgets | None = None) -> Run:
    """Decodes `tokens` tokens in each of `sessions` sessions, all in step, each beginning anew when it is done."""
    budgets = budgets or Budgets(world.costs)
    live = [session(world, number, tokens, wish(budget)) for number in range(sessions)]
    nodes: list[list[int]] = [[] for _ in live]
    reasons: list[str] = []
    now = emitted = probes = 0.0
    while any(len(each.context) <= tokens for each in live):
        moving = [each for each in live if len(each.context) <= tokens]
        share = (STEP_TOKENS - len(moving)) // len(moving)
        budgets.begin(moving, Load(now, len(moving), 0, share))  # type: ignore[arg-type]
        turns, started = [], now
        for each in moving:
            nodes[live.index(each)].append(each.grant.nodes)
            reasons.append(each.grant.reason)
            asked = min(each.grant.nodes, share)
            tree = each.came = each.tree(asked, world)
            if asked:
                levels = int(tree.depths.max())
                started = max(started, now + world.fixed_s + world.level_s * levels)
            turns.append(Turn(each, 1, 1, tree))  # type: ignore[arg-type]
        budgets.offered(turns, started)
        waited = len(moving) > 1 and any(each.grant.nodes for each in moving)
        beside_s = world.beside_s * sum(each.grant.probe > 0 for each in moving)
        seconds = budgets.times.seconds(len(turns), sum(turn.tokens + 1 for turn in turns))
        turns = worthwhile(turns, seconds, started - now)
        pass_tokens = world.costs.padded(sum(turn.tokens for turn in turns))
        pass_s = world.slower * (world.costs.seconds(pass_tokens) or 0.0) * (world.leftover if waited else 1.0)
        ended = started + pass_s + world.overhead_s + beside_s
        arriving: list[tuple[SimSession, DraftTree, int]] = []
        for each, turn in zip(moving, turns, strict=True):
            if each.grant.probe:
                probes += 1
                arriving.append((each, each.tree(each.grant.probe, world), len(each.context)))
            length, accepted = len(each.context), 0
            while accepted < len(turn.tree) and each.right[length + accepted]:
                accepted += 1
            each.context.append([(length + step) % VOCAB for step in range(accepted + 1)])
            each.rounds += 1
            emitted += accepted + 1
            budgets.settled(turn, accepted)
            if budget != "auto" and budget != 0:
                each.calibration.learn(float(path_probs(turn.tree).sum()), accepted)
        budgets.stepped(turns, ended - started)
        for each, tree, length in arriving:  # with the step, so that it was beside them
            budgets.arrived(each, tree, length, growing=False)  # type: ignore[arg-type]
        now = ended
    return Run(int(emitted), now, nodes, reasons, int(probes))
