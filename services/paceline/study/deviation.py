"""How far nucleus verification moves the law of a reply, by enumeration, beside the bound that is booked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculation.nucleus import Nucleus
from paceline.speculation.rows import Row, nucleus
from paceline.study.enumeration import TableModel, law
from paceline.study.outcomes import total_variation

SHAPES = {"ranked, 1 a level": ((1, 1), False), "ranked, 2 a level": ((2, 2), False)} | {
    "sampled, 1 a level": ((1, 1), True),
    "sampled, 2 a level": ((2, 2), True),
}


@dataclass(frozen=True, slots=True)
class DeviationSettings:
    """Which tables."""

    tables: int = 8
    vocab: int = 4
    horizon: int = 3
    seed: int = 20261130
    limits: Sequence[float | None] = (None, 0.1)  # max_deviation


def deviation_rows(
    masses: Sequence[float], settings: DeviationSettings, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row for each kind of tree, mass and limit: means over random tables, and the worst of them."""
    rng = np.random.default_rng(settings.seed)
    models = [TableModel(_table(rng, settings.vocab), _table(rng, settings.vocab)) for _ in range(settings.tables)]
    rows: list[dict[str, Any]] = []
    for name, (children, sampled) in SHAPES.items():
        exact = [law(each, children, sampled=sampled, rule=Nucleus(0.0), horizon=settings.horizon) for each in models]
        for limit in settings.limits:
            for mass in masses:
                progress(f"law by enumeration: {name}, mass {mass:g}, limit {limit}")
                rule = Nucleus(mass, max_deviation=limit)
                laws = [law(each, children, sampled=sampled, rule=rule, horizon=settings.horizon) for each in models]
                moved = np.asarray(
                    [total_variation(one.probs, two.probs) for one, two in zip(laws, exact, strict=True)]
                )
                spent = np.asarray([each.spent for each in laws])
                rows.append(
                    {
                        "tree": name,
                        "mass": mass,
                        "max_deviation": "none" if limit is None else limit,
                        "tables": len(models),
                        "tv_mean": float(moved.mean()),
                        "tv_max": float(moved.max()),
                        "spent_mean": float(spent.mean()),
                        "spent_max": float(spent.max()),
                        "relaxations_mean": float(np.mean([each.fired for each in laws])),
                        "tv_over_spent_max": float(np.max(moved[spent > 0] / spent[spent > 0], initial=0.0)),
                        "bound_holds": bool((moved <= spent + 1e-9).all()),
                    }
                )
    return rows


def one_step_error(masses: Sequence[float], settings: DeviationSettings) -> float:
    """Largest difference between the one-step total variation and the drafter's excess inside the nucleus.

    One candidate drawn from the drafter's row: the paper's own setting and formula.
    """
    rng = np.random.default_rng(settings.seed)
    worst = 0.0
    for _ in range(settings.tables):
        model = TableModel(_table(rng, settings.vocab), _table(rng, settings.vocab))
        exact = _first_token(model, 0.0)
        weights = model.drafter[0].astype(np.float32).astype(np.float64)  # as they travel
        for mass in masses:
            good = nucleus(Row.from_dense(model.target[0]), mass).token_ids
            excess = np.maximum(weights / weights.sum() - model.target[0], 0.0)[good].sum()
            worst = max(worst, abs(total_variation(_first_token(model, mass), exact) - float(excess)))
    return worst


def _first_token(model: TableModel, mass: float) -> dict[tuple[int, ...], float]:
    """The law of one token that had one candidate."""
    both = law(model, (1,), sampled=True, rule=Nucleus(mass), horizon=2)
    probs: dict[tuple[int, ...], float] = {}
    for tokens, prob in both.probs.items():
        probs[tokens[:1]] = probs.get(tokens[:1], 0.0) + prob
    return probs


def _table(rng: np.random.Generator, vocab: int) -> NDArray[np.float64]:
    table: NDArray[np.float64] = rng.dirichlet(np.full(vocab, 0.7), size=vocab)
    return table
