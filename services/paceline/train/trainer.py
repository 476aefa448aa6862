"""The loop: batches in an order that the seed fixes, checkpoints with a validation each, and an end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import InvalidField, PacelineError
from paceline.train.batches import Batcher, epoch_plan
from paceline.train.checkpoint import Checkpoint, Place
from paceline.train.loss import Agreement, distillation_loss
from paceline.train.run_length import RunLength, rate
from paceline.train.settings import TrainSettings
from paceline.train.student import Student

BETAS = (0.9, 0.95)


class TrainingDiverged(PacelineError):
    """The gradient is not finite; the text says what to change. The last checkpoint is as it was."""


class Watcher(Protocol):
    """Who is told how a run goes."""

    def stepped(self, share: float, place: Place, loss: float) -> None:
        """A step is done; `share` of the run is behind it."""
        ...

    def validated(self, place: Place) -> None:
        """Another entry of `place.metrics` is there."""
        ...


@dataclass(frozen=True, slots=True)
class Split:
    """Sequences by use."""

    lengths: NDArray[np.int64]  # [sequences] tokens
    learned: NDArray[np.int64]  # indices
    held_out: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64], replies: NDArray[np.int64], share: float, seed: int) -> Split:
        """Holds `share` of the sequences out, at least one; those without a reply are in neither part.

        Raises InvalidField if fewer than two are left.
        """
        order = np.random.default_rng([seed]).permutation(np.flatnonzero(replies > 0))
        if len(order) < 2:
            raise InvalidField("--corpus", f"{len(order)} sequences with a reply", "at least 2")
        count = min(max(1, round(share * len(order))), len(order) - 1)
        return cls(lengths, np.sort(order[count:]), np.sort(order[:count]))


class Trainer:
    """One run over one corpus."""

    def __init__(
        self,
        student: Student,
        batcher: Batcher,
        split: Split,
        settings: TrainSettings,
        identity: dict[str, Any],
        device: torch.device,
        dtype: torch.dtype,
        checkpoint: Path,
        watcher: Watcher,
        clock: Callable[[], float],
    ) -> None:
        """Takes the parts.

        Args:
            student: what is trained, in float32.
            batcher: makes its batches.
            split: which sequences are learned from, and which are held out.
            settings: of the run.
            identity: of corpus and target; a run goes on with the same.
            device: where passes run.
            dtype: of passes; float32, or bfloat16 by autocast.
            checkpoint: file of the run.
            watcher: is told how it goes.
            clock: seconds, ascending.
        """
        self._student, self._batcher, self._split, self._settings = student, batcher, split, settings
        self._identity, self._device, self._dtype = identity, device, dtype
        self._path, self._watcher, self._clock = checkpoint, watcher, clock
        self.place = Place()
        student.model.to(device).train()
        matrices = [each for each in student.tensors().values() if each.ndim > 1]
        others = [each for each in student.tensors().values() if each.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._parameters = matrices + others
        self._optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=BETAS, fused=True)
        self._plans: dict[int, list[NDArray[np.int64]]] = {}
        self._length = self._run_length()

    def resume(self) -> None:
        """Goes on where the checkpoint is. Raises InvalidField if it is of another run, ModelDamaged."""
        held = Checkpoint.read(self._path)
        self._settings.check_same(held.settings)
        for name, value in self._identity.items():
            if held.identity.get(name, value) != value:  # a run of an earlier version knew less of itself
                raise InvalidField("--resume", value, f"{name} {held.identity[name]}, as the run began with")
        with torch.no_grad():
            for name, parameter in self._student.tensors().items():
                parameter.copy_(held.tensors[name])
        self._optimizer.load_state_dict(held.optimizer)
        self.place = held.place

    def run(self, stop: Callable[[], bool]) -> bool:
        """Trains to the end, or until `stop` says so between two steps; leaves a checkpoint either way.

        Returns:
            True at the end of the run.
        """
        place, began = self.place, self._clock() - self.place.seconds
        if not place.metrics:
            self._validate(began)
        saved = place.seconds
        while self._length.share(place.step, place.seconds) < 1.0:
            if stop():
                self._save()
                return False
            self._step()
            place.seconds = self._clock() - began
            if place.seconds - saved >= 60 * self._settings.checkpoint_minutes:
                self._validate(began)
                self._save()
                saved = place.seconds
        if place.metrics[-1]["step"] != place.step:
            self._validate(began)
        self._save()
        return True

    def _run_length(self) -> RunLength:
        if self._settings.minutes is not None:
            return RunLength(seconds=60 * self._settings.minutes)
        assert self._settings.epochs is not None
        whole = int(self._settings.epochs)
        steps = sum(len(self._plan(epoch)) for epoch in range(whole))
        if rest := self._settings.epochs - whole:
            steps += round(rest * len(self._plan(whole)))
        return RunLength(steps=max(1, steps))

    def _plan(self, epoch: int) -> list[NDArray[np.int64]]:
        if epoch not in self._plans:
            split, settings = self._split, self._settings
            self._plans = {epoch: epoch_plan(split.lengths, split.learned, settings.batch_tokens, settings.seed, epoch)}
        return self._plans[epoch]

    def _step(self) -> None:
        place, settings = self.place, self._settings
        plan = self._plan(place.epoch)
        sequences = plan[place.batch]
        batch = self._batcher.batch(sequences).to(self._device)
        share = self._length.share(place.step, place.seconds)
        for group in self._optimizer.param_groups:
            group["lr"] = rate(share, settings.learning_rate, settings.warm_up)
        with self._autocast():
            loss = distillation_loss(self._student.logits(batch), batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, settings.clip)
        if not bool(torch.isfinite(norm)):
            raise TrainingDiverged(
                f"step {place.step}: the gradient is not finite; lower --learning-rate, or train with --dtype float32"
            )
        self._optimizer.step()
        place.step += 1
        place.tokens += int(self._split.lengths[sequences].sum())
        place.batch += 1
        if place.batch == len(plan):
            place.epoch, place.batch = place.epoch + 1, 0
        self._watcher.stepped(self._length.share(place.step, place.seconds), place, loss.item())

    @torch.no_grad()
    def _validate(self, began: float) -> None:
        self._student.model.eval()
        agreement = Agreement()
        for sequences in epoch_plan(self._split.lengths, self._split.held_out, self._settings.batch_tokens, 0, 0):
            batch = self._batcher.batch(sequences).to(self._device)
            with self._autocast():
                agreement.add(self._student.logits(batch), batch)
        self._student.model.train()
        place = self.place
        place.seconds = self._clock() - began
        place.metrics.append(
            {
                "step": place.step,
                "epoch": place.epoch,
                "tokens": place.tokens,
                "seconds": round(place.seconds, 3),
                **agreement.means(),
            }
        )
        self._watcher.validated(place)

    def _save(self) -> None:
        settings = self._settings.as_dict()
        tensors = self._student.tensors()
        Checkpoint(settings, self._identity, self.place, tensors, self._optimizer.state_dict()).write(self._path)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16)
