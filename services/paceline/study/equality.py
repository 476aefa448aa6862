"""Speculative decoding against plain decoding, token by token, through the services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np
import torch

from paceline.drafter.scripted import Answers, OracleProposer
from paceline.prompt_file import Prompt, chat_tokens
from paceline.runtime.models import ModelSpec
from paceline.runtime.runner import ModelRunner
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import TextTokenizer, load_tokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.speculation.noise import gumbel
from paceline.speculation.propose import draft_noise_key
from paceline.speculation.rows import process
from paceline.speculation.sampling import SamplingParams
from paceline.study.bare import BareModel
from paceline.study.in_process import services
from paceline.study.report import Report
from paceline.target.config import TargetConfig
from paceline_client.client import AsyncClient
from paceline_client.request import Tokens

KV_TOKENS = 20480
LIKELY = 64  # tokens of a row whose logits are compared
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EqualitySettings:
    """What to compare."""

    model: str
    prompts: Sequence[Prompt]
    dtype: str = "float32"
    prompt_tokens: int = 560
    new_tokens: int = 96
    sampled_prompts: int = 6  # prompts that are also sampled, and decoded by every rule
    company: int = 8  # requests at once


@dataclass(frozen=True, slots=True)
class Tally:
    """Outcome of one comparison over all prompts."""

    equal: int
    near_ties: int  # first differences that the near-tie rule allows
    faults: int
    tokens: int
    rounds: int
    accepted: int


class Rows(Protocol):
    """Rows of a model, computed in two ways that should give the same."""

    def row(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` from one pass over all: [vocab] float32."""
        ...

    def row_cached(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens`, the last one alone over a cache: [vocab] float32."""
        ...


class Judge:
    """Decides whether a first difference is a near-tie (THEORY 6), on a model's own rows, mostly transformers'."""

    def __init__(self, bare: Rows, exact: Rows | None = None) -> None:
        """`exact`: the same weights in float32, where `bare` is in a coarser format; None: `bare` is in float32."""
        self._bare, self._exact = bare, exact

    def near_tie(self, context: Sequence[int], ours: int, theirs: int, params: SamplingParams) -> bool:
        """True if the two tokens' perturbed scores differ by at most twice the measured error of a row.

        The error is the largest difference, over the likely tokens, of the logits of two passes of the context that
        should be equal: a full forward and a cached one, each beside float32 where they are bfloat16. Of two tokens
        alone it would often be 0: a bfloat16 logit has steps of 1/8.
        """
        rows = [self._bare.row(context), self._bare.row_cached(context)]
        true = rows[0] if self._exact is None else self._exact.row(context)
        likely = torch.topk(true, min(LIKELY, len(true))).indices
        pairs = [(rows[0], rows[1])] if self._exact is None else [(row, true) for row in rows]
        errors = [(one - other)[likely] for one, other in pairs]
        error = max(float((each - each.mean()).abs().max()) for each in errors)  # a common shift changes no draw
        pair = [ours, theirs]
        scores = true[pair].double().numpy()
        if not params.greedy:
            states = [_inside(true, token, params, 2 * error) for token in pair]
            if None in states:
                return True  # a tie at the edge of top_k or top_p: another pass may draw from another set
            if not all(states):
                return False
            scores = scores / params.temperature + gumbel(draft_noise_key(params, len(context)), np.asarray(pair))
            error /= params.temperature
        return abs(float(scores[0] - scores[1])) <= 2 * error


def _inside(logits: torch.Tensor, token: int, params: SamplingParams, slack: float) -> bool | None:
    """Whether top-k and top-p leave a token; None if that changes where its logit moves by `slack`."""
    found = []
    for moved in (slack, -slack):
        shifted = logits.clone()
        shifted[token] += moved
        found.append(process(shifted, params, len(shifted)).prob(token) > 0)
    return found[0] if found[0] == found[1] else None


async def study_equality(settings: EqualitySettings, progress: Progress) -> Report:
    """Greedy against transformers' `generate`; sampled against our own plain decoding with the same seed."""
    folder = default_store().resolve(settings.model)
    tokenizer = load_tokenizer(folder)
    bare = BareModel(folder, settings.dtype)
    prompts = [chat_tokens(tokenizer, prompt.text, settings.prompt_tokens) for prompt in settings.prompts]
    replies = []
    for number, prompt in enumerate(prompts, start=1):
        progress(f"reference {number} of {len(prompts)}")
        replies.append(bare.generate(prompt, settings.new_tokens))
    progress("loading the target")
    spec = ModelSpec(str(folder), dtype=settings.dtype)
    runner = load_runner(spec, KV_TOKENS, vocab_size=tokenizer.vocab_size)
    exact = BareModel(folder, "float32") if settings.dtype == "bfloat16" else None
    run = _Run(settings, runner, tokenizer, Judge(bare, exact), progress)
    answers: Answers = {tuple(prompt): reply for prompt, reply in zip(prompts, replies, strict=True)}
    rows = await run.greedy(None, prompts, replies)
    rows += await run.greedy(OracleProposer(answers), prompts, replies)
    rows += await run.greedy(OracleProposer(answers, wrong=True), prompts, replies)
    rows += await run.sampled(prompts[: settings.sampled_prompts])
    rows += await run.rules(prompts[: settings.sampled_prompts], replies[: settings.sampled_prompts])
    shown = {
        "model": settings.model,
        "dtype": settings.dtype,
        "prompts": len(prompts),
        "new_tokens": settings.new_tokens,
    }
    return Report(
        "equality",
        shown,
        rows,
        notes=["a fault is a first difference whose two tokens are not a near-tie; there must be none"],
        passed=not any(row["faults"] for row in rows),
    )


class _Run:
    def __init__(
        self,
        settings: EqualitySettings,
        runner: ModelRunner,
        tokenizer: TextTokenizer,
        judge: Judge,
        progress: Progress,
    ) -> None:
        self._settings, self._judge, self._progress = settings, judge, progress
        self._runner, self._tokenizer = runner, tokenizer
        # Trees are verified whole: what pays on this machine today must not decide what is compared.
        self._config = TargetConfig(kv_tokens=KV_TOKENS, cost_aware=False, budget=8)

    async def greedy(
        self, proposer: OracleProposer | None, prompts: Sequence[list[int]], replies: Sequence[list[int]]
    ) -> list[dict[str, Any]]:
        """One at a time and in company, with one kind of drafter."""
        name = "suffix" if proposer is None else proposer.name
        rows = []
        async with (
            services(self._runner, self._tokenizer, self._config, proposer) as address,
            AsyncClient(address) as client,
        ):
            for at_once in (1, self._settings.company):
                self._progress(f"greedy, {name}, {at_once} at once")
                params = SamplingParams()
                tally = await self._compare(client, prompts, replies, at_once, params, {})
                rows.append(_row("transformers generate", name, "ranked", params, at_once, len(prompts), tally))
        return rows

    async def sampled(self, prompts: Sequence[list[int]]) -> list[dict[str, Any]]:
        """Seeded requests, drafted and not, alone and in company."""
        rows = []
        async with (
            services(self._runner, self._tokenizer, self._config, None) as address,
            AsyncClient(address) as client,
        ):
            for temperature in (0.7, 1.0):
                params = SamplingParams(temperature=temperature, top_p=0.9, seed=20261130)
                plain = await self._all(client, prompts, 1, params, {"draft": False})
                replies = [reply for reply, _, _ in plain]
                for proposal in ("ranked", "coupled"):
                    for at_once in (1, self._settings.company):
                        self._progress(f"temperature {temperature}, {proposal}, {at_once} at once")
                        fields = {"proposal": proposal}
                        tally = await self._compare(client, prompts, replies, at_once, params, fields)
                        rows.append(_row("plain", "suffix", proposal, params, at_once, len(prompts), tally))
        return rows

    async def rules(self, prompts: Sequence[list[int]], replies: Sequence[list[int]]) -> list[dict[str, Any]]:
        """Greedy under every selection rule, waiting for trees and not."""
        rows = []
        async with (
            services(self._runner, self._tokenizer, self._config, None) as address,
            AsyncClient(address) as client,
        ):
            for selection, wait in product(("draft", "retain", "rerank", "draw_first", "auto"), ("deadline", "never")):
                self._progress(f"{selection}, wait {wait}")
                params, fields = SamplingParams(), {"selection": selection, "wait": wait}
                tally = await self._compare(client, prompts, replies, 1, params, fields)
                rule = f"{selection}, wait {wait}"
                rows.append(_row("transformers generate", "suffix", "ranked", params, 1, len(prompts), tally, rule))
        return rows

    async def _compare(
        self,
        client: AsyncClient,
        prompts: Sequence[list[int]],
        replies: Sequence[list[int]],
        at_once: int,
        params: SamplingParams,
        fields: dict[str, Any],
    ) -> Tally:
        found = await self._all(client, prompts, at_once, params, fields)
        equal = near = faults = 0
        for prompt, reply, (ours, _, _) in zip(prompts, replies, found, strict=True):
            if ours == reply:
                equal += 1
                continue
            at = next((i for i, (a, b) in enumerate(zip(ours, reply, strict=False)) if a != b), None)
            if at is not None and self._judge.near_tie([*prompt, *reply[:at]], ours[at], reply[at], params):
                near += 1
            else:
                faults += 1
        counts = [
            sum(each) for each in zip(*((len(ours), rounds, accepted) for ours, rounds, accepted in found), strict=True)
        ]
        return Tally(equal, near, faults, *counts)

    async def _all(
        self,
        client: AsyncClient,
        prompts: Sequence[list[int]],
        at_once: int,
        params: SamplingParams,
        fields: dict[str, Any],
    ) -> list[tuple[list[int], int, int]]:
        """Tokens, rounds and accepted tokens of each reply."""
        gate = asyncio.Semaphore(at_once)

        async def one(prompt: list[int]) -> tuple[list[int], int, int]:
            async with gate:
                reply = await client.complete(
                    Tokens(prompt),
                    max_tokens=self._settings.new_tokens,
                    temperature=params.temperature,
                    top_p=params.top_p,
                    seed=params.seed,
                    **fields,
                )
            speculation = reply.finish.speculation
            return list(reply.token_ids), speculation.rounds, speculation.accepted

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def _row(
    against: str,
    drafter: str,
    proposal: str,
    params: SamplingParams,
    at_once: int,
    prompts: int,
    tally: Tally,
    rule: str = "auto, wait deadline",
) -> dict[str, Any]:
    return {
        "against": against,
        "drafter": drafter,
        "proposal": proposal,
        "rule": rule,
        "temperature": params.temperature,
        "at_once": at_once,
        "prompts": prompts,
        "equal": tally.equal,
        "near_ties": tally.near_ties,
        "faults": tally.faults,
        "tokens": tally.tokens,
        "tokens_per_round": tally.tokens / tally.rounds,
    }
