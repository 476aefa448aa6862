"""Between messages and the settings they stand for. The gateway is made of these: nothing here needs torch."""

from __future__ import annotations

from paceline.errors import InvalidField
from paceline.speculation.modes import Proposal, Selection, WaitFor, refusal
from paceline.speculation.nucleus import Nucleus
from paceline.speculation.sampling import SamplingParams
from paceline.v1 import common_pb2

# Unspecified is in none of these tables: whoever reads a message decides what it means.
PROPOSALS = {
    common_pb2.PROPOSAL_RANKED: Proposal.RANKED,
    common_pb2.PROPOSAL_COUPLED: Proposal.COUPLED,
    common_pb2.PROPOSAL_SAMPLED: Proposal.SAMPLED,
}
SELECTIONS = {
    common_pb2.SELECTION_RULE_AUTO: Selection.AUTO,
    common_pb2.SELECTION_RULE_DRAFT: Selection.DRAFT,
    common_pb2.SELECTION_RULE_RETAIN: Selection.RETAIN,
    common_pb2.SELECTION_RULE_RERANK: Selection.RERANK,
    common_pb2.SELECTION_RULE_DRAW_FIRST: Selection.DRAW_FIRST,
}
WAITS = {
    common_pb2.WAIT_MODE_TREE: WaitFor.TREE,
    common_pb2.WAIT_MODE_DEADLINE: WaitFor.DEADLINE,
    common_pb2.WAIT_MODE_NEVER: WaitFor.NEVER,
}
PROPOSAL_NUMBERS = {kind: number for number, kind in PROPOSALS.items()}
SELECTION_NUMBERS = {rule: number for number, rule in SELECTIONS.items()}
WAIT_NUMBERS = {wait: number for number, wait in WAITS.items()}


def nucleus_from_proto(message: common_pb2.NucleusVerification) -> Nucleus:
    """Settings from a message, checked. Raises InvalidField for the first field out of range, and without a mass."""
    if not message.HasField("mass"):
        raise InvalidField("speculation.nucleus.mass", "nothing", "0 (the exact rule) to 1", "Set the nucleus's mass.")
    optional = {
        name: getattr(message, name) if message.HasField(name) else None
        for name in ("temperature", "max_deviation", "max_deviation_per_token", "max_relaxations")
    }
    settings = Nucleus(mass=message.mass, **optional)
    for field, value, allowed in settings.faults():
        raise InvalidField(f"speculation.nucleus.{field}", value, allowed)
    return settings


def check_legal(proposal: Proposal, selection: Selection, *, nucleus: bool, greedy: bool) -> None:
    """Raises InvalidField with the reason if these do not go together."""
    refused = refusal(proposal, selection, nucleus=nucleus, greedy=greedy)
    if refused is not None:
        raise InvalidField(f"speculation.{refused.field}", refused.value, refused.allowed, refused.remedy)


def sampling_to_proto(params: SamplingParams, *, with_seed: bool = True) -> common_pb2.SamplingParams:
    """A message with every field set; the seed stays home unless the other side needs the noise."""
    message = common_pb2.SamplingParams(temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    if with_seed:
        message.seed = params.seed
    return message


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Parameters from a message of another service, absent fields at their defaults; ranges are not checked."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        seed=message.seed,
    )


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidField for the first field out of range."""
    for field, value, allowed in params.faults(vocab_size):
        raise InvalidField(f"sampling.{field}", value, allowed)
