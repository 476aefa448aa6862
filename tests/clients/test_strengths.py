"""What a target has learned of coupling strengths, as `paceline status` shows it."""

from __future__ import annotations

from paceline.v1 import inference_pb2
from paceline_client.commands.status import table
from paceline_client.service import StrengthState, model_info_of, status_of


def test_strengths_in_force_are_a_line_of_the_table() -> None:
    told = [
        inference_pb2.StrengthState(
            proposer="suffix",
            temperature_to=temperature,
            strength=strength,
            in_force=in_force,
            sessions=9,
            accepted_per_round=0.5,
        )
        for temperature, strength, in_force in [(0.85, 2, True), (0.85, 3, False), (0, 1e6, True)]
    ]
    target = inference_pb2.TargetStatus(address="a:1", drafter_state="ready", strengths=told)
    status = status_of(inference_pb2.GetStatusResponse(targets=[target]))
    assert status.targets[0].strengths[1] == StrengthState("suffix", 0.85, 3.0, False, 9.0, 0.5)
    lines = table(model_info_of(inference_pb2.GetModelInfoResponse()), status)
    (line,) = [each.strip() for each in lines if "coupling" in each]
    assert line == (
        "coupling strength in force: suffix up to temperature 0.85 2 (0.50 accepted per drafted round),"
        " suffix above 1e+06 (0.50 accepted per drafted round)"
    )
    quiet = status_of(inference_pb2.GetStatusResponse(targets=[inference_pb2.TargetStatus()]))
    assert not any("coupling" in each for each in table(model_info_of(inference_pb2.GetModelInfoResponse()), quiet))
