"""What a client asks of the drafter: checked, every default filled in for the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from paceline.errors import InvalidField
from paceline.rpc.convert import (
    PROPOSAL_NUMBERS,
    PROPOSALS,
    SELECTION_NUMBERS,
    SELECTIONS,
    WAIT_NUMBERS,
    WAITS,
    check_legal,
    nucleus_from_proto,
)
from paceline.speculation.modes import (
    MAX_DEADLINE_MS,
    MAX_STRENGTH,
    MIN_STRENGTH,
    Proposal,
    Selection,
    WaitFor,
    refusal,
)
from paceline.speculation.sampling import SamplingParams
from paceline.v1 import common_pb2, inference_pb2

Number = TypeVar("Number", bound=int)
Mode = TypeVar("Mode", bound=StrEnum)


def speculation(
    asked: common_pb2.SpeculationParams, sampling: SamplingParams, model: inference_pb2.GetModelInfoResponse
) -> common_pb2.SpeculationParams:
    """The parameters for a target that serves `model`. They are checked also where the request decodes plainly.

    Strength, `deadline_ms` and `learn` are set only where the request names them: the target has its own defaults, and
    goes by who named a deadline. `budget` is set unless the target is to choose it. Raises InvalidField naming field,
    value and what is allowed.
    """
    _check_budget(asked, model)
    draft = asked.draft if asked.HasField("draft") else True
    budget = _budget(asked, model) if draft else 0
    proposal, selection = _modes(asked, sampling, model)
    _check_learn(asked, proposal, model)
    wait = _named("wait", asked.wait, WAITS) or WAITS.get(model.default_wait, WaitFor.DEADLINE)
    return common_pb2.SpeculationParams(
        draft=draft,
        budget=budget,
        auto_budget=budget is None,
        proposal=PROPOSAL_NUMBERS[proposal],
        strength=_strength(asked, proposal),
        nucleus=asked.nucleus if asked.HasField("nucleus") else None,
        selection=SELECTION_NUMBERS[selection],
        wait=WAIT_NUMBERS[wait],
        deadline_ms=_deadline_ms(asked, wait),
        learn=asked.learn if asked.HasField("learn") else None,
    )


def _check_budget(asked: common_pb2.SpeculationParams, model: inference_pb2.GetModelInfoResponse) -> None:
    """Raises InvalidField for a budget that is too large, or named and left to the server at once."""
    if not asked.HasField("budget"):
        return
    if asked.auto_budget:
        remedy = "Name a budget, or leave it to the server."
        raise InvalidField("speculation.budget", asked.budget, "absent with auto_budget", remedy)
    if asked.budget > model.max_budget:
        raise InvalidField("speculation.budget", asked.budget, f"0 to {model.max_budget} (max_budget)")


def _budget(asked: common_pb2.SpeculationParams, model: inference_pb2.GetModelInfoResponse) -> int | None:
    """Draft nodes a round; None leaves them to the target."""
    if asked.HasField("budget"):
        return asked.budget
    return None if asked.auto_budget or model.default_auto_budget else model.default_budget


def _check_learn(
    asked: common_pb2.SpeculationParams, proposal: Proposal, model: inference_pb2.GetModelInfoResponse
) -> None:
    """Refuses a wish that would not be fulfilled. Raises InvalidField."""
    if not asked.learn:
        return
    if not model.default_learn:
        raise InvalidField("speculation.learn", True, "false or absent", "This server learns from no reply.")
    if asked.HasField("nucleus") or proposal is Proposal.SAMPLED:
        what = "nucleus verification" if asked.HasField("nucleus") else "sampled proposals"
        raise InvalidField("speculation.learn", True, f"false or absent with {what}", "Such replies are never learned.")


def _modes(
    asked: common_pb2.SpeculationParams, sampling: SamplingParams, model: inference_pb2.GetModelInfoResponse
) -> tuple[Proposal, Selection]:
    """Proposal and selection rule: the request's, or defaults that go with the rest of it."""
    nucleus = asked.HasField("nucleus")
    if nucleus:
        nucleus_from_proto(asked.nucleus)
    usual = Proposal.RANKED if sampling.greedy or nucleus else Proposal.COUPLED
    proposal = _named("proposal", asked.proposal, PROPOSALS) or usual
    selection = _named("selection", asked.selection, SELECTIONS)
    check_legal(proposal, selection or Selection.AUTO, nucleus=nucleus, greedy=sampling.greedy)
    if selection is not None:
        return proposal, selection
    usual_rule = SELECTIONS.get(model.default_selection, Selection.AUTO)
    legal = refusal(proposal, usual_rule, nucleus=nucleus, greedy=sampling.greedy) is None
    return proposal, usual_rule if legal else Selection.AUTO  # nobody asked for the default by name


def _named(field: str, number: Number, known: Mapping[Number, Mode]) -> Mode | None:
    """The mode of an enum's number, None for unspecified. Raises InvalidField for a number without a name."""
    if number == 0:
        return None
    if number not in known:
        names = ", ".join(f"{mode} ({value})" for value, mode in sorted(known.items()))
        raise InvalidField(f"speculation.{field}", number, f"{names}, or absent")
    return known[number]


def _strength(asked: common_pb2.SpeculationParams, proposal: Proposal) -> float | None:
    if not asked.HasField("strength"):
        return None  # the target learns it
    if proposal is not Proposal.COUPLED:
        raise InvalidField(
            "speculation.strength",
            asked.strength,
            f"absent with {proposal} proposals",
            "Only coupled ones use it; they are the default above temperature 0 with exact verification.",
        )
    if not (math.isfinite(asked.strength) and MIN_STRENGTH <= asked.strength <= MAX_STRENGTH):
        raise InvalidField("speculation.strength", asked.strength, f"{MIN_STRENGTH:g} to {MAX_STRENGTH:g}")
    return asked.strength


def _deadline_ms(asked: common_pb2.SpeculationParams, wait: WaitFor) -> int | None:
    if not asked.HasField("deadline_ms"):
        return None  # the target's own
    if wait is not WaitFor.DEADLINE:
        raise InvalidField(
            "speculation.deadline_ms", asked.deadline_ms, f"absent with wait {wait}", "Set wait to deadline."
        )
    if not 1 <= asked.deadline_ms <= MAX_DEADLINE_MS:
        remedy = "To wait for no tree set wait to never." if asked.deadline_ms == 0 else "To wait on set wait to tree."
        raise InvalidField("speculation.deadline_ms", asked.deadline_ms, f"1 to {MAX_DEADLINE_MS} milliseconds", remedy)
    return asked.deadline_ms
