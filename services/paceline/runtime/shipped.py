"""Drafters that come with the package, each trained for a model that is known by name.

Their folders lie in `paceline/shipped`: a distilled drafter (see `drafter_folder`), `texts.npz` with replies of the
target for the suffix proposer's store, and a model card, `README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files("paceline"))) / "shipped"
TEXTS = "texts.npz"  # of a drafter's folder; need not be there


@dataclass(frozen=True, slots=True)
class ShippedDrafter:
    """A drafter of the package."""

    name: str
    target: str  # the known model it was trained for
    licence: str
    description: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.name


SHIPPED: Mapping[str, ShippedDrafter] = {
    each.name: each
    for each in (
        ShippedDrafter(
            name="smollm2-135m-drafter",
            target="smollm2-135m-instruct",
            licence="Apache-2.0",
            description="Drafter for smollm2-135m-instruct: four layers, head of 8192 tokens; comes with Paceline",
        ),
    )
}


def comes_for(drafter: str, target: str) -> bool:
    """Whether the package brings `drafter` for `target`, both by name: they then fit, and nothing need be compared."""
    return drafter in SHIPPED and SHIPPED[drafter].target == target


def shipped_for(target: str) -> str | None:
    """The name of the drafter that comes with the package for a target; None if there is none."""
    return next((each.name for each in SHIPPED.values() if each.target == target), None)
