"""Settings of a drafter replica: ranges, and no setting that does nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from paceline.drafter.config import DrafterConfig, unread_by


def test_defaults_are_good_and_survive_a_round_trip() -> None:
    config = DrafterConfig()
    assert DrafterConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"proposer": "model"}, "model: got None"),
        ({"proposer": "fused"}, "model: got None, allowed: a model, since proposer is 'fused'"),
        ({"model": "m"}, "model: got 'm', .* It is a setting of proposers 'model' and 'fused'"),
        ({"target_model": "m"}, "target_model: got 'm'"),
        ({"dtype": "bfloat16"}, "dtype: got 'bfloat16'"),
        ({"width": 5}, "width: got 5"),
        ({"proposer": "model", "model": "m", "store_mb": 5}, "store_mb: got 5"),
        ({"proposer": "model", "model": "m", "store_file": "f"}, "store_file: got 'f'"),
        ({"store_mb": -1}, "store_mb"),
        ({"store_mb": 0, "store_file": "f"}, "store_file: got 'f', allowed: None, since store_mb is 0"),
        ({"store_file": ""}, "store_file"),
        ({"store_save_s": 5}, "store_save_s: got 5, allowed: the default, without a store_file"),
        ({"store_file": "f", "store_save_s": -1}, "store_save_s"),
        ({"proposer": "scripted"}, "proposer"),
        ({"max_depth": 0}, "max_depth"),
        ({"port": 65536}, "port"),
        ({"min_path_prob": 1.5}, "min_path_prob"),
        ({"max_sesions": 5}, "max_sesions"),
    ],
)
def test_what_is_wrong_or_would_do_nothing_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DrafterConfig(**changes)


def test_the_fused_proposer_reads_what_either_member_reads() -> None:
    config = DrafterConfig(proposer="fused", model="m", target_model="t", store_mb=5, store_file="f", width=2)
    assert config.has_model
    assert unread_by("fused") == frozenset()
    assert "store_mb" in unread_by("model")
    assert "width" in unread_by("suffix")


def test_every_setting_is_described() -> None:
    assert all(field.description for field in DrafterConfig.model_fields.values())
