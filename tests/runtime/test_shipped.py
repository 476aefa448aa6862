"""Drafters that come with the package: found by name, small, and fit for their target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import ModelDamaged, ModelNotFound
from paceline.runtime import shipped
from paceline.runtime.drafter_fit import fit_drafter
from paceline.runtime.known_models import DEFAULT_MODEL, KNOWN_MODELS
from paceline.runtime.shipped import SHIPPED, ShippedDrafter, comes_for, shipped_for
from paceline.runtime.store import ModelStore, default_store

MOST_BYTES = 20_000_000


def test_the_default_model_has_one() -> None:
    name = shipped_for(DEFAULT_MODEL)
    assert name is not None
    assert default_store().resolve(name) == SHIPPED[name].folder
    assert shipped_for("owner/other") is None
    assert comes_for(name, DEFAULT_MODEL)
    assert not comes_for(name, "owner/other"), "with another target it is to be compared"
    assert not comes_for(f"./{name}", DEFAULT_MODEL), "a folder may hold anything"


def test_each_is_for_a_known_model_and_has_no_name_of_one() -> None:
    assert {each.target for each in SHIPPED.values()} <= set(KNOWN_MODELS)
    assert not set(SHIPPED) & set(KNOWN_MODELS)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_is_small_and_has_a_card(name: str) -> None:
    sizes = {path.name: path.stat().st_size for path in SHIPPED[name].folder.rglob("*")}
    assert sum(sizes.values()) <= MOST_BYTES
    assert sizes["README.md"] > 500


@pytest.mark.model
def test_the_default_one_fits_its_target() -> None:
    name = shipped_for(DEFAULT_MODEL)
    assert name is not None
    fit = fit_drafter(SHIPPED[name].folder, name, DEFAULT_MODEL, default_store().resolve)
    assert fit.trimmed is not None
    assert len(fit.trimmed.token_ids) == fit.trimmed.facts.columns


def test_it_is_listed_and_named_where_a_name_is_unknown(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, {})
    assert [(each.name, each.state) for each in store.listing()] == [(name, "ready") for name in SHIPPED]
    with pytest.raises(ModelNotFound, match=next(iter(SHIPPED))):
        store.resolve("smollm3")


def test_one_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    lost = replace(next(iter(SHIPPED.values())), name="lost")
    assert isinstance(lost, ShippedDrafter)
    store = ModelStore(tmp_path, {}, shipped={"lost": lost})
    assert [each.state for each in store.listing()] == ["missing"]
    with pytest.raises(ModelDamaged, match="lost is missing from this installation"):
        store.resolve("lost")
