"""What is minimised, and what is measured of it. Legend: R rows, K tokens of a teacher's row, C columns of the head."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.train.batches import Batch


def distillation_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """KL divergence of the student from the teacher, the mean over rows.

    The teacher's row is restricted to the head and renormalised; a row counts by the probability that it has there, as
    no more than that can be accepted.

    Args:
        logits: [R, C] of the student.
        batch: the teacher's rows.
    """
    log_probs = torch.log_softmax(logits.float(), dim=1).gather(1, batch.columns)
    divergence = (torch.xlogy(batch.probs, batch.probs) - batch.probs * log_probs).sum(dim=1)
    return (divergence * batch.weights).sum() / len(batch.weights)


@dataclass(slots=True)
class Agreement:
    """Sums over rows."""

    rows: int = 0
    loss: float = 0.0
    top1: int = 0  # rows whose most probable token is the teacher's
    top4: int = 0  # rows that have the teacher's most probable token among their first four
    overlap: float = 0.0  # sum over tokens of the smaller of both probabilities: how often a drawn token is accepted

    def add(self, logits: torch.Tensor, batch: Batch) -> None:
        """Adds the rows of a batch; `logits` is [R, C]. A token that the head lacks is a miss."""
        best = logits.topk(min(4, logits.shape[1]), dim=1).indices == batch.best[:, None]
        student = torch.softmax(logits.float(), dim=1).gather(1, batch.columns)
        self.rows += len(logits)
        self.loss += float(distillation_loss(logits, batch)) * len(logits)
        self.top1 += int(best[:, 0].sum())
        self.top4 += int(best.sum())
        self.overlap += float(torch.minimum(student, batch.teacher).sum())

    def means(self) -> dict[str, float]:
        """Means over rows, by name."""
        return {name: getattr(self, name) / self.rows for name in ("loss", "top1", "top4", "overlap")}
