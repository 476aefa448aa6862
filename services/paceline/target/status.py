"""What a target says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from paceline import __version__
from paceline.rpc.convert import SELECTION_NUMBERS, WAIT_NUMBERS
from paceline.speculation.modes import Selection, WaitFor
from paceline.target.engine import TargetEngine
from paceline.target.link import DrafterLink
from paceline.target.strength import StrengthLine
from paceline.v1 import common_pb2, inference_pb2, target_pb2


@dataclass(frozen=True, slots=True)
class Identity:
    """What stays as it is while a replica runs."""

    model: str  # name as configured
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    tokenizer_fingerprint: str
    has_chat_template: bool
    default_budget: int
    default_auto_budget: bool
    max_budget: int
    default_selection: Selection
    default_wait: WaitFor
    default_deadline_ms: int
    default_learn: bool
    incarnation: str


class StatusReport:
    """Answers GetTargetInfo and GetTargetStatus. Runs on the event loop."""

    def __init__(self, identity: Identity, engine: TargetEngine, link: DrafterLink | None) -> None:
        self._identity, self._engine, self._link = identity, engine, link
        self.address = ""  # known once the replica listens

    async def info(self) -> target_pb2.GetTargetInfoResponse:
        """The model, and the kind of proposer if a drafter is reachable."""
        drafter = await self._drafter()
        known = self._identity
        return target_pb2.GetTargetInfoResponse(
            model=inference_pb2.GetModelInfoResponse(
                model=known.model,
                vocab_size=known.vocab_size,
                context_length=known.context_length,
                eos_token_ids=known.eos_token_ids,
                dtype=known.dtype,
                device=known.device,
                tokenizer_fingerprint=known.tokenizer_fingerprint,
                proposer=drafter.proposer if drafter is not None else "",
                default_sampling=common_pb2.SamplingParams(temperature=0.0, top_k=0, top_p=1.0),
                default_budget=known.default_budget,
                default_auto_budget=known.default_auto_budget,
                max_budget=known.max_budget,
                version=__version__,
                has_chat_template=known.has_chat_template,
                default_selection=SELECTION_NUMBERS[known.default_selection],
                default_wait=WAIT_NUMBERS[known.default_wait],
                default_deadline_ms=known.default_deadline_ms,
                default_learn=known.default_learn,
            )
        )

    async def status(self) -> target_pb2.GetTargetStatusResponse:
        """Sessions, KV, totals, and the drafter it is linked to."""
        drafter = await self._drafter()
        state = self._engine.status()
        totals = state.totals
        return target_pb2.GetTargetStatusResponse(
            target=inference_pb2.TargetStatus(
                address=self.address,
                incarnation=self._identity.incarnation,
                active_sessions=state.active,
                queued_sessions=state.queued,
                kv_pages_used=state.kv_pages_used,
                kv_pages_total=state.kv_pages_total,
                passes=totals.passes,
                accepted=totals.accepted,
                drafted=totals.drafted,
                emitted=totals.emitted,
                fallbacks=dict(totals.fallbacks),
                selections=dict(totals.selections),
                selection_reason=totals.reason,
                budgets=dict(totals.budgets),
                budget_reason=totals.budget_reason,
                row_cache_hits=totals.row_hits,
                shared_prompt_tokens=totals.shared_prompt_tokens,
                relaxed=totals.relaxed,
                strengths=[_strength(line) for line in state.strengths],
                drafter_address=self._link.address if self._link is not None else "",
                drafter_state=self._drafter_state(suspended=state.suspended),
            ),
            drafters=[drafter] if drafter is not None else [],
        )

    def _drafter_state(self, *, suspended: bool) -> str:
        if self._link is None:
            return "absent"
        return "suspended" if self._link.state == "ready" and suspended else self._link.state

    async def _drafter(self) -> inference_pb2.DrafterStatus | None:
        return await self._link.drafter_status() if self._link is not None else None


def _strength(line: StrengthLine) -> inference_pb2.StrengthState:
    return inference_pb2.StrengthState(
        proposer=line.proposer,
        temperature_to=line.temperature_to,
        strength=line.strength,
        in_force=line.in_force,
        sessions=line.sessions,
        accepted_per_round=line.accepted,
    )
