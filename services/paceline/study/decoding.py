"""Speculative decoding in one process, many sessions a pass: the target's own verification without the services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelRunner, PassRows
from paceline.speculation.choices import SeededChoices
from paceline.speculation.noise import Purpose
from paceline.speculation.nucleus import Ledger, Nucleus
from paceline.speculation.rows import Row, nucleus, process
from paceline.speculation.sampling import SamplingParams
from paceline.speculation.tree import ROOT, DraftTree
from paceline.speculation.verify import Relaxing, Walk, verify
from paceline.study.session_drafts import SessionDrafts

READ_TOKENS = 256  # of a prompt in one pass


@dataclass(slots=True)
class Reply:
    """A decoded reply and what it took."""

    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0  # of the tokens under the target at temperature 1, nats
    rounds: int = 0
    accepted: int = 0  # draft tokens kept
    relaxed: int = 0  # of those, tokens that only the nucleus rule kept
    ledger: Ledger = field(default_factory=Ledger)
    sizes: list[int] = field(default_factory=list)  # nodes verified in each round


@dataclass(slots=True)
class _Session:
    prompt: list[int]
    params: SamplingParams
    sequence: int
    reply: Reply = field(default_factory=Reply)


def decode(
    runner: ModelRunner,
    drafts: SessionDrafts,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    rule: Nucleus | None,
    new_tokens: int,
) -> list[Reply]:
    """Decodes every prompt to an end token or `new_tokens`; the rounds of all share their passes.

    Prompt number i has seed `params.seed + i`. With a rule the draws are of the stream of nucleus requests, whatever
    the mass, so that replies of different masses differ by relaxation alone; without one they are of the stream that
    coupled trees follow.
    """
    kv = runner.kv
    sessions: dict[int, _Session] = {}
    try:
        for number, prompt in enumerate(prompts):
            own = replace(params, seed=params.seed + number)
            sessions[number] = _Session(list(prompt), own, kv.open(reserve_tokens=len(prompt) + new_tokens))
            _read(runner, sessions[number])
            drafts.open(number, prompt, own)
        going = dict(sessions)
        while going:
            left = {number: new_tokens - len(each.reply.tokens) - 1 for number, each in going.items()}
            trees = drafts.trees(left)
            segments = [
                Segment.verification(each.sequence, [*each.prompt, *each.reply.tokens][-1], trees[number])
                for number, each in going.items()
            ]
            rows = runner.execute(PassPlan(tuple(segments)))
            for index, (number, each) in enumerate(list(going.items())):
                walk = _settle(runner, each, trees[number], rows, index, rule)
                if walk.tokens[-1] in runner.info.eos_token_ids or len(each.reply.tokens) >= new_tokens:
                    drafts.close(number)
                    del going[number]
                else:
                    drafts.advance(number, walk.tokens)
    finally:
        for each in sessions.values():
            kv.release(each.sequence)
    return [each.reply for each in sessions.values()]


def _read(runner: ModelRunner, session: _Session) -> None:
    before = session.prompt[:-1]  # the last token is pending
    for start in range(0, len(before), READ_TOKENS):
        chunk = before[start : start + READ_TOKENS]
        runner.execute(PassPlan((Segment.chain(session.sequence, chunk, last_row=False),)))
        runner.kv.keep(session.sequence, range(len(chunk)))


def _settle(
    runner: ModelRunner, session: _Session, tree: DraftTree, rows: PassRows, segment: int, rule: Nucleus | None
) -> Walk:
    """The walk of a round, kept in the KV and booked in the reply."""
    vocab_size, params, reply = runner.info.vocab_size, session.params, session.reply

    def logits_at(node: int) -> torch.Tensor:
        return rows.logits(segment, node + 1)

    @cache
    def row_at(node: int) -> Row:
        return process(logits_at(node), params, vocab_size)

    def nucleus_at(node: int) -> Row:
        assert rule is not None
        if rule.row_params(params) == params:
            return nucleus(row_at(node), rule.mass)
        return nucleus(process(logits_at(node), rule.row_params(params), vocab_size), rule.mass)

    relaxing = None if rule is None else Relaxing(rule, reply.ledger, len(reply.tokens), row_at, nucleus_at)
    walk = verify(
        tree,
        row_at,
        SeededChoices(params, plain=Purpose.DRAW if rule is None else Purpose.NUCLEUS),
        len(session.prompt) + len(reply.tokens),
        runner.info.eos_token_ids.__contains__,
        relaxing,
    )
    runner.kv.keep(session.sequence, [0, *(node + 1 for node in walk.accepted)])
    for node, token in zip((ROOT, *walk.accepted), walk.tokens, strict=False):
        reply.log_prob += float(torch.log_softmax(logits_at(node)[:vocab_size], dim=0)[token])
    reply.tokens += walk.tokens
    reply.rounds += 1
    reply.accepted += len(walk.accepted)
    reply.relaxed += len(walk.relaxed)
    reply.ledger = walk.ledger if rule is not None else reply.ledger
    reply.sizes.append(len(tree))
    return walk
