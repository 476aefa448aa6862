"""Members of a fused drafter, as `paceline status` shows them."""

from __future__ import annotations

from paceline.v1 import inference_pb2
from paceline_client.commands.status import table
from paceline_client.service import MemberTrust, model_info_of, status_of


def test_members_are_lines_below_their_drafter() -> None:
    trust = [
        inference_pb2.MemberTrust(warmth=warmth, depth=depth, contexts=9, promised=promised, right=right)
        for warmth, depth, promised, right in [
            ("greedy", 1, 0.3, 0.42),
            ("greedy", 2, 0.35, 0.5),
            ("warm", 1, 0.2, 0.1),
        ]
    ]
    members = [
        inference_pb2.MemberState(proposer="suffix", sessions=3, trust=trust),
        inference_pb2.MemberState(proposer="model", sessions=2, passes=70, left={"context limit": 1}),
    ]
    drafter = inference_pb2.DrafterStatus(address="a:1", proposer="fused", sessions=3, streams=1, members=members)
    status = status_of(inference_pb2.GetStatusResponse(drafters=[drafter]))
    assert status.drafters[0].members[0].trust[1] == MemberTrust("greedy", 2, 9.0, 0.35, 0.5)
    lines = table(model_info_of(inference_pb2.GetModelInfoResponse()), status)
    at = next(number for number, line in enumerate(lines) if line.startswith("drafter"))
    assert [line.strip() for line in lines[at + 1 :]] == [
        "suffix: 3 sessions, greedy right (promised) by level: 42% (30%) 50% (35%), warm right (promised) by level:"
        " 10% (20%)",
        "model: 2 sessions, 70 passes, left: context limit 1",
    ]
