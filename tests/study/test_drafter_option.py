"""`--drafter` of studies."""

from __future__ import annotations

import argparse

import pytest

from paceline.errors import InvalidField
from paceline.study.drafter_option import add_drafter_option, drafter_config


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="owner/target")
    parser.add_argument("--dtype", default="float32")
    add_drafter_option(parser, "suffix")
    return parser.parse_args(given)


def test_the_format_of_a_drafter_that_is_a_model() -> None:
    assert drafter_config(options("--drafter", "owner/small", "--dtype", "float32")).dtype == "auto"
    assert drafter_config(options("--drafter", "owner/small", "--drafter-dtype", "bfloat16")).dtype == "bfloat16"
    assert drafter_config(options()).proposer == "suffix"


def test_a_drafter_that_is_no_model_has_no_format() -> None:
    with pytest.raises(InvalidField, match="--drafter-dtype: got 'int8', allowed: absent, since the drafter is no"):
        drafter_config(options("--drafter-dtype", "int8"))
