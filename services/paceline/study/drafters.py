"""Drafters decoded for real: accepted tokens by budget, temperature and strength, and agreement with the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paceline.drafter.fused import FusedProposer
from paceline.drafter.model import ModelProposer
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.runtime.costs import PassCosts
from paceline.runtime.runner import ModelRunner
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import ROOT
from paceline.study.acceptance import walked
from paceline.study.decoding import Reply, decode
from paceline.study.metered import MeteredRunner
from paceline.study.reply import plain_replies
from paceline.study.session_drafts import RankedDrafts, SessionDrafts
from paceline.target.strength import FIRST, STRENGTHS

AT_ONCE = 24  # sessions that share their passes, so that KV suffices for any number of prompts
AMONG = 4  # first children of a context that `top4` looks at


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """What is decoded. Ranked trees at temperature 0, coupled ones above."""

    budgets: Sequence[int] = (4, 8, 16)
    temperatures: Sequence[float] = (0.0, 0.7)
    strength: float = FIRST  # of the results by budget
    strengths: Sequence[float] = STRENGTHS
    strength_temperatures: Sequence[float] = (0.7, 1.0)
    strength_budget: int = 8
    seed: int = 20261130
    prompt_tokens: int = 192  # most tokens of a prompt
    new_tokens: int = 64  # of a reply
    max_depth: int = 8
    width: int = 4  # nodes of a level that a model drafter looks below
    min_path_prob: float = 0.01
    replay: bool = (
        False  # walk trees along the plain replies; the rounds are those of decoding, since the rules are exact
    )


@dataclass(frozen=True, slots=True)
class TreeKind:
    """Trees that a drafter is asked for."""

    budget: int
    max_depth: int
    min_path_prob: float
    strength: float | None  # None: ranked


class Drafter(Protocol):
    """A kind of drafter. Whatever it remembers of served text is there before the study asks it."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def open(self, target: ModelRunner, kind: TreeKind) -> SessionDrafts:
        """A new one, without sessions."""
        ...


STORE_BYTES = 512 * MB  # of the studied store: more than what is served to it


@dataclass(frozen=True, slots=True)
class SuffixDrafter:
    """The suffix proposer: a session's own text, and `served` tokens of other sessions."""

    name: str
    served: Sequence[Sequence[int]] = ()  # texts that the store has learned

    def open(self, target: ModelRunner, kind: TreeKind) -> SessionDrafts:
        """A new one, which has learned what was served."""
        proposer = SuffixProposer(_Taught(self.served), kind.max_depth, kind.min_path_prob)
        return RankedDrafts(
            proposer, None, target.info.vocab_size, target.info.eos_token_ids, kind.budget, kind.strength
        )


@dataclass(frozen=True, slots=True)
class ModelDrafter:
    """A model proposer."""

    name: str
    runner: ModelRunner
    width: int  # nodes of a level that it looks below

    def open(self, target: ModelRunner, kind: TreeKind) -> SessionDrafts:
        """A new one, without sessions; its time is that of its passes."""
        meter = MeteredRunner(self.runner)
        proposer = ModelProposer(
            meter,
            "",
            max_depth=kind.max_depth,
            width=self.width,
            step_tokens=256,
            min_path_prob=kind.min_path_prob,
        )
        return RankedDrafts(
            proposer, meter, target.info.vocab_size, target.info.eos_token_ids, kind.budget, kind.strength
        )


@dataclass(frozen=True, slots=True)
class FusedDrafter:
    """A fused proposer: the session's own text, `served` tokens of other sessions, and a model."""

    name: str
    runner: ModelRunner
    width: int  # nodes of a level that the model looks below
    served: Sequence[Sequence[int]] = ()  # texts that the store has learned

    def open(self, target: ModelRunner, kind: TreeKind) -> SessionDrafts:
        """A new one, without sessions, that weighs its passes against the target's measured ones.

        What members are worth is learned over the sessions; their texts are not.
        """
        meter = MeteredRunner(self.runner)
        proposer = FusedProposer(
            SuffixProposer(_Taught(self.served), kind.max_depth, kind.min_path_prob),
            meter,
            "",
            max_depth=kind.max_depth,
            width=self.width,
            step_tokens=256,
            min_path_prob=kind.min_path_prob,
            times=TableTimes(self.runner.costs, target.costs.seconds(1 + kind.budget)),
        )
        return RankedDrafts(
            proposer,
            meter,
            target.info.vocab_size,
            target.info.eos_token_ids,
            kind.budget,
            kind.strength,
            beside=True,
            teach=True,
        )


@dataclass(frozen=True, slots=True)
class TableTimes:
    """What looks are weighed against, from measured tables; where a table is missing every look is made.

    Sessions of a study share passes so that it is done sooner, but each is drafted for as if it were alone.
    """

    costs: PassCosts  # of the drafter's model
    round_s: float | None  # of the target's pass

    def pass_s(self, tokens: int, sessions: int) -> float | None:
        """Of a pass of the model over tokens of one session."""
        return self.costs.seconds(tokens)

    def passed(self, tokens: int, seconds: float) -> None:
        """The table stays."""

    def rounded(self, seconds: float) -> None:
        """The table stays."""


class _Taught(TextStore):
    """A store that has learned texts, and learns no others."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        super().__init__(STORE_BYTES if texts else 0)
        for text in texts:
            super().add(list(text), 0)
        while self.learn_part():
            continue

    def add(self, tokens: Sequence[int], prompt_length: int, tenant: str = "") -> None:
        """Leaves the store as it is."""


class DrafterBench:
    """A target and its prompts."""

    def __init__(self, target: ModelRunner, prompts: Sequence[Sequence[int]], settings: DrafterSettings) -> None:
        """Takes them."""
        self._target, self._prompts, self._settings = target, prompts, settings
        self._replies: dict[float, list[list[int]]] = {}

    def cell(self, drafter: Drafter, budget: int, temperature: float, strength: float) -> dict[str, Any]:
        """What every reply took, as plain data. At temperature 0 there is no strength.

        Decoded with the target's own verification, or replayed.
        """
        settings = self._settings
        kind = TreeKind(budget, settings.max_depth, settings.min_path_prob, strength if temperature else None)
        drafts = drafter.open(self._target, kind)
        replies: list[Reply] = []
        for start, prompts in self._batches():
            params = SamplingParams(temperature=temperature, seed=settings.seed + start)
            if settings.replay:
                known = self.replies(temperature)[start : start + len(prompts)]
                replies += replay(drafts, prompts, params, known, settings.new_tokens)
            else:
                replies += decode(self._target, drafts, prompts, params, None, settings.new_tokens)
        return {"replies": [_plain(each) for each in replies], "draft_s": drafts.seconds}

    def replies(self, temperature: float) -> list[list[int]]:
        """The target's own replies without a drafter; decoded once."""
        if temperature not in self._replies:
            settings = self._settings
            self._replies[temperature] = [
                reply
                for start, prompts in self._batches()
                for reply in plain_replies(
                    self._target,
                    prompts,
                    SamplingParams(temperature=temperature, seed=settings.seed + start),
                    settings.new_tokens,
                )
            ]
        return self._replies[temperature]

    def know(self, temperature: float, replies: list[list[int]]) -> None:
        """Takes `replies` of an earlier run with the same settings."""
        self._replies[temperature] = replies

    def agreement(self, drafter: Drafter, replies: Sequence[Sequence[int]]) -> list[list[int]]:
        """For each reply: tokens, and how many of them are the drafter's first, and among its first four."""
        drafts = drafter.open(self._target, TreeKind(AMONG, 1, 0.0, None))
        found = []
        for start, prompts in self._batches():
            found += _agreement(drafts, prompts, replies[start : start + len(prompts)])
        return found

    def _batches(self) -> Iterator[tuple[int, Sequence[Sequence[int]]]]:
        for start in range(0, len(self._prompts), AT_ONCE):
            yield start, self._prompts[start : start + AT_ONCE]


def _agreement(
    drafts: SessionDrafts, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
) -> list[list[int]]:
    found = [[len(reply), 0, 0] for reply in replies]
    for number, prompt in enumerate(prompts):
        drafts.open(number, prompt, SamplingParams())
    going = list(range(len(replies)))
    for position in range(max(map(len, replies))):
        trees = drafts.trees(dict.fromkeys(going, 1))
        for number in list(going):
            token, tree = replies[number][position], trees[number]
            first = tree.tokens[tree.children(ROOT)].tolist()
            found[number][1] += first[:1] == [token]
            found[number][2] += token in first[:AMONG]
            if position + 1 < len(replies[number]):
                drafts.advance(number, [token])
            else:
                drafts.close(number)
                going.remove(number)
    return found


def replay(
    drafts: SessionDrafts,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    replies: Sequence[Sequence[int]],
    new_tokens: int,
) -> list[Reply]:
    """What `decode` finds with exact verification, told by the plain replies that it would give."""
    found = [Reply() for _ in replies]
    for number, prompt in enumerate(prompts):
        drafts.open(number, prompt, replace(params, seed=params.seed + number))
    going = list(range(len(replies)))
    while going:
        trees = drafts.trees({number: new_tokens - len(found[number].tokens) - 1 for number in going})
        for number in list(going):
            each, ahead = found[number], replies[number][len(found[number].tokens) :]
            accepted = len(walked(trees[number], list(ahead)))
            each.tokens += ahead[: accepted + 1]
            each.rounds += 1
            each.accepted += accepted
            each.sizes.append(len(trees[number]))
            if len(each.tokens) == len(replies[number]):
                drafts.close(number)
                going.remove(number)
            else:
                drafts.advance(number, list(ahead[: accepted + 1]))
    return found


def serve(
    target: ModelRunner,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    seed: int,
    progress: Callable[[int], None],
    at_once: int = AT_ONCE,
    reply_tokens: int = 96,
) -> list[list[int]]:
    """Replies at temperature 0.7 to the prompts in turn, until `tokens` have been served."""
    texts: list[list[int]] = []
    served = 0
    turn = 0
    while served < tokens:
        batch = [prompts[(turn * at_once + number) % len(prompts)] for number in range(at_once)]
        params = SamplingParams(temperature=0.7, seed=seed + turn * at_once)
        replies = plain_replies(target, batch, params, min(reply_tokens, max(1, (tokens - served) // at_once + 1)))
        texts += replies
        served += sum(map(len, replies))
        turn += 1
        progress(served)
    return texts


def _plain(reply: Reply) -> dict[str, Any]:
    return {"tokens": len(reply.tokens), "rounds": reply.rounds, "accepted": reply.accepted, "sizes": reply.sizes}
