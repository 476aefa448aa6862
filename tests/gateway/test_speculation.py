"""What a request wants of the drafter: every field, every pair, every default (THEORY 6)."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest

from gateway.rig import gateway, model, says, within
from paceline.errors import InvalidField
from paceline.gateway.speculation import speculation
from paceline.speculation.sampling import SamplingParams
from paceline.v1 import common_pb2, inference_pb2

Params, Nucleus = common_pb2.SpeculationParams, common_pb2.NucleusVerification
RANKED, COUPLED, SAMPLED = common_pb2.PROPOSAL_RANKED, common_pb2.PROPOSAL_COUPLED, common_pb2.PROPOSAL_SAMPLED
AUTO, DRAFT = common_pb2.SELECTION_RULE_AUTO, common_pb2.SELECTION_RULE_DRAFT
RETAIN, RERANK = common_pb2.SELECTION_RULE_RETAIN, common_pb2.SELECTION_RULE_RERANK
DRAW_FIRST = common_pb2.SELECTION_RULE_DRAW_FIRST
TREE, DEADLINE, NEVER = common_pb2.WAIT_MODE_TREE, common_pb2.WAIT_MODE_DEADLINE, common_pb2.WAIT_MODE_NEVER
WARM, GREEDY = SamplingParams(temperature=1.0), SamplingParams(temperature=0.0)
HALF = Nucleus(mass=0.5)


def resolved(asked: Params, sampling: SamplingParams = WARM, **described: Any) -> Params:
    return speculation(asked, sampling, model(**described))


# (parameters, sampling, field named, value as it is told, what is allowed, remedy)
WRONG: dict[str, tuple[Params, SamplingParams, str, object, str, str]] = {
    "proposal": (
        Params(proposal=7),  # type: ignore[arg-type]
        WARM,
        "proposal",
        7,
        "ranked (1), coupled (2), sampled (3), or absent",
        "",
    ),
    "selection": (
        Params(selection=-1),  # type: ignore[arg-type]
        WARM,
        "selection",
        -1,
        "auto (1), draft (2), retain (3), rerank (4), draw_first (5), or absent",
        "",
    ),
    "wait": (
        Params(wait=4),  # type: ignore[arg-type]
        WARM,
        "wait",
        4,
        "tree (1), deadline (2), never (3), or absent",
        "",
    ),
    "budget": (Params(budget=65), WARM, "budget", 65, "0 to 64 (max_budget)", ""),
    "budget, auto": (Params(budget=3, auto_budget=True), WARM, "budget", 3, "absent with auto_budget", "or leave it"),
    "coupled, greedy": (Params(proposal=COUPLED), GREEDY, "proposal", "coupled", "ranked where", "raise the temp"),
    "sampled, greedy": (Params(proposal=SAMPLED), GREEDY, "proposal", "sampled", "ranked where", "raise the temp"),
    "coupled, nucleus": (
        Params(proposal=COUPLED, nucleus=HALF), WARM, "proposal", "coupled", "ranked or sampled with nucleus", "leave",
    ),
    "coupled, nucleus of mass 0": (
        Params(proposal=COUPLED, nucleus=Nucleus(mass=0)), WARM, "proposal", "coupled", "ranked or sampled", "leave",
    ),
    "sampled, retain": (
        Params(proposal=SAMPLED, selection=RETAIN), WARM, "selection", "retain", "draft, draw_first or auto", "take",
    ),
    "sampled, rerank": (
        Params(proposal=SAMPLED, selection=RERANK), WARM, "selection", "rerank", "draft, draw_first or auto", "take",
    ),
    "sampled, nucleus, rerank": (
        Params(proposal=SAMPLED, selection=RERANK, nucleus=HALF), WARM, "selection", "rerank", "draw_first", "take",
    ),
    "strength, nucleus": (
        Params(strength=2, nucleus=HALF), WARM, "strength", 2.0, "absent with ranked", "Only coupled",
    ),
    "strength, sampled": (
        Params(strength=2, proposal=SAMPLED), WARM, "strength", 2.0, "absent with sampled", "Only coupled",
    ),
    "strength": (Params(strength=2e6), WARM, "strength", 2e6, "0.1 to 1e+06", ""),
    "deadline 0": (Params(deadline_ms=0), WARM, "deadline_ms", 0, "1 to 60000 milliseconds", "never"),
    "deadline": (Params(deadline_ms=60_001), WARM, "deadline_ms", 60_001, "1 to 60000 milliseconds", "wait to tree"),
    "deadline, tree": (
        Params(deadline_ms=5, wait=TREE), WARM, "deadline_ms", 5, "absent with wait tree", "Set wait to deadline.",
    ),
    "deadline, never": (
        Params(deadline_ms=5, wait=NEVER), WARM, "deadline_ms", 5, "absent with wait never", "Set wait to deadline.",
    ),
    "no mass": (
        Params(nucleus=Nucleus(max_deviation=1)), WARM, "nucleus.mass", "nothing", "0 (the exact rule) to 1", "Set",
    ),
    "mass": (Params(nucleus=Nucleus(mass=1.5)), WARM, "nucleus.mass", 1.5, "0 (the exact rule) to 1", ""),
    "mass below 0": (Params(nucleus=Nucleus(mass=-0.1)), WARM, "nucleus.mass", -0.1, "0 (the exact rule) to 1", ""),
    "temperature": (
        Params(nucleus=Nucleus(mass=0.5, temperature=0)), WARM, "nucleus.temperature", 0.0, "0.01 to 1e+06", "",
    ),
    "max_deviation": (
        Params(nucleus=Nucleus(mass=0.5, max_deviation=-1)), WARM, "nucleus.max_deviation", -1.0, "0 or more", "",
    ),
    "max_deviation_per_token": (
        Params(nucleus=Nucleus(mass=0.5, max_deviation_per_token=-1)), WARM, "nucleus.max_deviation_per_token", -1.0,
        "0 or more", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("draft", [None, False])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named_with_value_range_and_remedy(name: str, draft: bool | None) -> None:
    """Also where the request decodes plainly."""
    params, sampling, field, value, allowed, remedy = WRONG[name]
    asked = Params()
    asked.CopyFrom(params)
    if draft is not None:
        asked.draft = draft
    with pytest.raises(InvalidField) as refused:
        resolved(asked, sampling)
    assert (refused.value.field, refused.value.got) == (f"speculation.{field}", value)
    assert allowed in refused.value.allowed
    assert remedy in refused.value.remedy
    assert "<" not in str(refused.value), "values are told in the words of the request"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["mass", "temperature", "max_deviation", "max_deviation_per_token"])
def test_a_nucleus_of_no_numbers_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidField, match=rf"speculation\.nucleus\.{field}: got -?(nan|inf), allowed: "):
        resolved(Params(nucleus=Nucleus(**{"mass": 0.5, field: value})))


# -- pairs -------------------------------------------------------------------------------------------------------------

LEGAL = {
    (RANKED, False): {AUTO, DRAFT, RETAIN, RERANK, DRAW_FIRST},
    (COUPLED, False): {AUTO, DRAFT, RETAIN, RERANK, DRAW_FIRST},
    (SAMPLED, False): {AUTO, DRAFT, DRAW_FIRST},
    (RANKED, True): {AUTO, DRAFT, RETAIN, RERANK, DRAW_FIRST},
    (COUPLED, True): set[int](),
    (SAMPLED, True): {AUTO, DRAFT, DRAW_FIRST},
}


@pytest.mark.parametrize("selection", [AUTO, DRAFT, RETAIN, RERANK, DRAW_FIRST])
@pytest.mark.parametrize(("proposal", "nucleus"), LEGAL)
def test_the_table_of_legal_pairs(
    proposal: common_pb2.Proposal, nucleus: bool, selection: common_pb2.SelectionRule
) -> None:
    asked = Params(proposal=proposal, selection=selection, nucleus=HALF if nucleus else None)
    if selection in LEGAL[proposal, nucleus]:
        answer = resolved(asked)
        assert (answer.proposal, answer.selection, answer.HasField("nucleus")) == (proposal, selection, nucleus)
    else:
        with pytest.raises(InvalidField):
            resolved(asked)


# -- defaults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "nucleus", "proposal"),
    [(WARM, None, COUPLED), (GREEDY, None, RANKED), (WARM, HALF, RANKED), (GREEDY, HALF, RANKED)],
)
def test_the_proposal_of_a_request_that_names_none(
    sampling: SamplingParams, nucleus: Nucleus | None, proposal: common_pb2.Proposal
) -> None:
    answer = resolved(Params(nucleus=nucleus), sampling)
    assert answer.proposal == proposal
    assert not answer.HasField("strength"), "the target learns it"


def test_absent_modes_take_the_models_and_named_ones_win() -> None:
    described = {"default_selection": RERANK, "default_wait": DEADLINE, "default_deadline_ms": 40}
    answer = resolved(Params(), **described)
    assert (answer.selection, answer.wait) == (RERANK, DEADLINE)
    assert not answer.HasField("deadline_ms"), "the target has its own, and goes by who named one"
    answer = resolved(Params(selection=DRAFT, wait=DEADLINE, deadline_ms=60_000), **described)
    assert (answer.selection, answer.wait, answer.deadline_ms) == (DRAFT, DEADLINE, 60_000)
    answer = resolved(Params(wait=NEVER), **described)
    assert (answer.wait, answer.HasField("deadline_ms")) == (NEVER, False)
    assert resolved(Params(), default_wait=TREE, default_deadline_ms=40).wait == TREE


def test_a_model_that_names_no_modes_gets_auto_and_its_own_deadline() -> None:
    answer = resolved(Params())
    assert (answer.selection, answer.wait, answer.HasField("deadline_ms")) == (AUTO, DEADLINE, False)


def test_a_deadline_needs_the_models_wait_to_be_one() -> None:
    assert resolved(Params(deadline_ms=1)).deadline_ms == 1
    with pytest.raises(InvalidField, match="absent with wait never"):
        resolved(Params(deadline_ms=1), default_wait=NEVER)


def test_a_default_rule_that_does_not_go_with_the_request_gives_way() -> None:
    """Nobody asked for it, so nobody is refused for it."""
    assert resolved(Params(proposal=SAMPLED), default_selection=RERANK).selection == AUTO
    assert resolved(Params(proposal=SAMPLED), default_selection=DRAW_FIRST).selection == DRAW_FIRST


def test_the_nucleus_reaches_the_target_as_it_was_given() -> None:
    for given in (
        Nucleus(mass=0),
        Nucleus(mass=1, temperature=0.01, max_deviation=0, max_deviation_per_token=0, max_relaxations=0),
        Nucleus(mass=0.9, temperature=1e6, max_deviation=3.5, max_deviation_per_token=0.25, max_relaxations=2**32 - 1),
    ):
        assert resolved(Params(nucleus=given)).nucleus == given


@pytest.mark.parametrize("default", [True, False])
def test_the_budget_is_left_to_the_target_or_named_and_never_both(default: bool) -> None:
    def found(asked: Params) -> tuple[bool, int | None]:
        answer = resolved(asked, default_auto_budget=default, default_budget=12)
        return answer.auto_budget, answer.budget if answer.HasField("budget") else None

    assert found(Params()) == ((True, None) if default else (False, 12))
    assert found(Params(auto_budget=True)) == (True, None)
    assert found(Params(budget=0)) == (False, 0)
    assert found(Params(budget=5)) == (False, 5)
    assert found(Params(draft=False, auto_budget=True)) == (False, 0)


def test_a_plain_request_keeps_its_checked_modes() -> None:
    asked = Params(draft=False, budget=5, nucleus=HALF, selection=DRAFT, wait=TREE)
    answer = Params(draft=False, budget=0, proposal=RANKED, nucleus=HALF, selection=DRAFT, wait=TREE)
    assert resolved(asked) == answer


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("served", [True, False])
def test_a_wish_about_learning_reaches_the_target_and_is_absent_without_one(served: bool) -> None:
    assert not resolved(Params(), default_learn=served).HasField("learn"), "the target knows its own default"
    answer = resolved(Params(learn=False), default_learn=served)
    assert (answer.HasField("learn"), answer.learn) == (True, False)
    for never in (Params(learn=False, proposal=SAMPLED), Params(learn=False, nucleus=HALF)):
        assert not resolved(never, default_learn=served).learn


@pytest.mark.parametrize(
    ("asked", "served", "allowed"),
    [
        (Params(), False, "false or absent. This server learns from no reply."),
        (Params(proposal=SAMPLED), True, "false or absent with sampled proposals. Such replies are never learned."),
        (Params(nucleus=HALF), True, "false or absent with nucleus verification. Such replies are never learned."),
        (Params(nucleus=HALF, draft=False), True, "false or absent with nucleus verification. Such replies are never"),
    ],
)
def test_to_be_learned_is_refused_where_the_reply_would_not_be(asked: Params, served: bool, allowed: str) -> None:
    wanted = Params(learn=True)
    wanted.MergeFrom(asked)
    with pytest.raises(InvalidField, match=f"speculation.learn: got True, allowed: {allowed}"):
        resolved(wanted, default_learn=served)


def test_to_be_learned_is_granted_where_the_server_learns() -> None:
    assert resolved(Params(learn=True), default_learn=True).learn


# -- through the service -----------------------------------------------------------------------------------------------


async def test_the_reason_of_a_refusal_reaches_the_client() -> None:
    async with gateway(says([72])) as served:
        request = inference_pb2.GenerateRequest(
            text="x",
            sampling=common_pb2.SamplingParams(temperature=1),
            speculation=Params(proposal=SAMPLED, selection=RERANK),
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await within(served.stub.Generate(request).read())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == (
            "speculation.selection: got 'rerank', allowed: draft, draw_first or auto with sampled proposals."
            " Choosing among sampled siblings by a row would bias the law; take ranked or coupled proposals."
        )
        assert not served.targets[0].requests
