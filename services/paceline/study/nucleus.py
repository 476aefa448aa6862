"""Nucleus verification decoded for real: acceptance, deviation and task scores by mass, drafter and temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.drafter.model import ModelProposer
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import TextStore
from paceline.runtime.runner import ModelRunner
from paceline.runtime.tokenizer import TextTokenizer
from paceline.speculation.modes import Proposal
from paceline.speculation.nucleus import Nucleus
from paceline.speculation.sampling import SamplingParams
from paceline.study.decoding import Reply, decode
from paceline.study.metered import MeteredRunner
from paceline.study.session_drafts import WIDE, RankedDrafts, SampledModel, SampledSuffix, SessionDrafts
from paceline.study.tasks import Task


@dataclass(frozen=True, slots=True)
class NucleusSettings:
    """What is decoded."""

    masses: Sequence[float] = (0.0, 0.3, 0.5, 0.7, 0.9, 0.95)
    temperatures: Sequence[float] = (0.0, 0.7, 1.0)
    seed: int = 20261130
    prompt_tokens: int = 192  # most tokens of a prompt
    new_tokens: int = 40  # of a reply to a prompt
    task_tokens: int = 16  # of an answer to a task
    tasks_per_kind: int = 4
    budget: int = 8  # nodes of a tree
    max_depth: int = 8  # levels of a suffix tree
    model_depth: int = 4  # levels of a model drafter's tree, each of which takes it a pass
    width: int = 4  # nodes of a level that a model drafter looks below
    min_path_prob: float = 0.01  # of ranked trees
    limited_mass: float = 0.9  # of the cells that show the limits

    def limits(self) -> list[Nucleus]:
        """Rules whose limits are shown to bind, and the one without."""
        free = Nucleus(self.limited_mass)
        changes: list[dict[str, Any]] = [
            {},
            {"max_deviation": 0.5},
            {"max_deviation": 2.0},
            {"max_deviation_per_token": 0.05},
            {"max_relaxations": 1},
            {"max_relaxations": 4},
        ]
        return [replace(free, **each) for each in changes]


@dataclass(frozen=True, slots=True)
class Drafter:
    """A kind of drafter; `model` None is the suffix proposer."""

    name: str
    proposal: Proposal
    model: ModelRunner | None

    def open(self, target: ModelRunner, settings: NucleusSettings) -> SessionDrafts:
        """A new one, which has seen no text."""
        vocab_size, eos = target.info.vocab_size, target.info.eos_token_ids
        budget, depth = settings.budget, settings.max_depth
        if self.model is None:
            wide = self.proposal is Proposal.SAMPLED
            proposer = SuffixProposer(TextStore(0), depth, 0.0 if wide else settings.min_path_prob)
            ranked = RankedDrafts(proposer, None, vocab_size, eos, WIDE if wide else budget)
            return SampledSuffix(ranked, budget, depth) if wide else ranked
        if self.proposal is Proposal.SAMPLED:
            return SampledModel(self.model, eos, budget, settings.model_depth)
        meter = MeteredRunner(self.model)
        model = ModelProposer(
            meter,
            "",
            max_depth=settings.model_depth,
            width=settings.width,
            step_tokens=256,
            min_path_prob=settings.min_path_prob,
        )
        return RankedDrafts(model, meter, vocab_size, eos, budget)


@dataclass(frozen=True, slots=True)
class Texts:
    """What is decoded: prompts as token ids, and tasks."""

    prompts: Sequence[Sequence[int]]
    tasks: Sequence[Task]
    task_prompts: Sequence[Sequence[int]]
    tokenizer: TextTokenizer


class Bench:
    """A target, and what it is asked."""

    def __init__(self, target: ModelRunner, texts: Texts, settings: NucleusSettings) -> None:
        """Takes them."""
        self._target, self._texts, self._settings = target, texts, settings

    def cell(self, drafter: Drafter, temperature: float, mass: float) -> dict[str, Any]:
        """One cell as plain data: the replies to prompts and tasks."""
        texts, settings = self._texts, self._settings
        rule = Nucleus(mass)
        replies, draft_s = self._decode(drafter, temperature, rule, texts.prompts, settings.new_tokens)
        answers, _ = self._decode(drafter, temperature, rule, texts.task_prompts, settings.task_tokens)
        solved = [
            task.solved(texts.tokenizer.decode(answer.tokens))
            for task, answer in zip(texts.tasks, answers, strict=True)
        ]
        return {
            "replies": [plain(each) for each in replies],
            "answers": [plain(each) for each in answers],
            "solved": solved,
            "draft_s": draft_s,
        }

    def limited(self, drafter: Drafter, temperature: float, rule: Nucleus) -> dict[str, Any]:
        """Replies to the prompts under a rule with limits."""
        replies, _ = self._decode(drafter, temperature, rule, self._texts.prompts, self._settings.new_tokens)
        return {"replies": [plain(each) for each in replies], "rule": asdict(rule)}

    def _decode(
        self, drafter: Drafter, temperature: float, rule: Nucleus, prompts: Sequence[Sequence[int]], new_tokens: int
    ) -> tuple[list[Reply], float]:
        drafts = drafter.open(self._target, self._settings)
        params = SamplingParams(temperature=temperature, seed=self._settings.seed)
        replies = decode(self._target, drafts, prompts, params, rule, new_tokens)
        return replies, drafts.seconds


def plain(reply: Reply) -> dict[str, Any]:
    """A reply as plain data."""
    return {
        "tokens": reply.tokens,
        "log_prob": reply.log_prob,
        "rounds": reply.rounds,
        "accepted": reply.accepted,
        "relaxed": reply.relaxed,
        "spent": reply.ledger.spent,
        "withheld": sum(reply.ledger.withheld.values()),
        "sizes": reply.sizes,
    }


def verify_seconds(replies: Sequence[Mapping[str, Any]], seconds: Callable[[int], float | None]) -> float:
    """What the rounds' passes take by measured costs, one session alone; NaN if a cost is not known."""
    sizes = np.asarray([size for each in replies for size in each["sizes"]])
    return float(sum((seconds(1 + int(size)) or math.nan) for size in sizes))
