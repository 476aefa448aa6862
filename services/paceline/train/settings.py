"""What a training run is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.errors import InvalidField

_RANGES: dict[str, tuple[float, float]] = {
    "vocab": (1, 2**24),
    "epochs": (1e-3, 10_000),
    "minutes": (0.01, 100_000),
    "batch_tokens": (16, 2**22),
    "learning_rate": (1e-7, 1.0),
    "warm_up": (0.0, 0.5),
    "weight_decay": (0.0, 1.0),
    "clip": (1e-3, 1e3),
    "temperature": (0.05, 20.0),
    "argmax_weight": (0.0, 1.0),
    "validation": (0.001, 0.5),
    "checkpoint_minutes": (0.0, 10_000),
    "seed": (0, 2**32 - 1),
}


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """One run. A run that goes on must have the same."""

    layers: tuple[int, ...] = ()  # of the target, ascending; none: the first two and the last two
    vocab: int | None = 8192  # tokens of the head; None: all
    epochs: float | None = None  # passes over the corpus; exactly one of this and `minutes` is set
    minutes: float | None = None  # wall-clock time of training, validation included
    batch_tokens: int = 4096  # of one step, padding included
    learning_rate: float = 1e-3  # at its highest
    warm_up: float = 0.03  # share of the run in which it rises
    weight_decay: float = 0.01  # of matrices
    clip: float = 1.0  # most that the gradient's norm may be
    temperature: float = 1.0  # of the teacher's rows
    argmax_weight: float = 0.0  # share of the teacher's most probable token alone in what is learned
    validation: float = 0.02  # share of sequences that are held out
    checkpoint_minutes: float = 5.0  # between checkpoints with their validation; 0: after each step
    dtype: str = "auto"  # of the passes: float32 on CPU, bfloat16 on GPU
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidField naming the option."""
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidField(option(name), value, f"{least:g} to {most:g}")
        if (self.epochs is None) == (self.minutes is None):
            raise InvalidField("--epochs, --minutes", (self.epochs, self.minutes), "exactly one of them")
        if list(self.layers) != sorted(set(self.layers)) or any(layer < 0 for layer in self.layers):
            raise InvalidField("--layers", list(self.layers), "ascending numbers from 0, none twice")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "layers": list(self.layers)}

    def check_same(self, kept: dict[str, Any]) -> None:
        """Raises InvalidField for the first setting in which the run to go on with differs."""
        mine = self.as_dict()
        for each in fields(self):
            if mine[each.name] != kept.get(each.name):
                remedy = "A run goes on with the settings that it began with."
                raise InvalidField(option(each.name), mine[each.name], f"{kept.get(each.name)} with --resume", remedy)


def option(name: str) -> str:
    """The command line's name of a setting."""
    return "--" + name.replace("_", "-")
