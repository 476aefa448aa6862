"""Words for the kinds of proposals, the selection rules and the waits."""

from __future__ import annotations

from typing import Literal

from paceline.v1 import common_pb2

Proposal = Literal["ranked", "coupled", "sampled"]
Selection = Literal["auto", "draft", "retain", "rerank", "draw_first"]
Wait = Literal["tree", "deadline", "never"]

# Numbers on the wire of the words of each mode.
MODES: dict[str, dict[str, int]] = {
    "proposal": {
        "ranked": common_pb2.PROPOSAL_RANKED,
        "coupled": common_pb2.PROPOSAL_COUPLED,
        "sampled": common_pb2.PROPOSAL_SAMPLED,
    },
    "selection": {
        "auto": common_pb2.SELECTION_RULE_AUTO,
        "draft": common_pb2.SELECTION_RULE_DRAFT,
        "retain": common_pb2.SELECTION_RULE_RETAIN,
        "rerank": common_pb2.SELECTION_RULE_RERANK,
        "draw_first": common_pb2.SELECTION_RULE_DRAW_FIRST,
    },
    "wait": {
        "tree": common_pb2.WAIT_MODE_TREE,
        "deadline": common_pb2.WAIT_MODE_DEADLINE,
        "never": common_pb2.WAIT_MODE_NEVER,
    },
}
