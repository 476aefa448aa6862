"""The packed pass beside the model itself, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline.runtime.models import ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.transformers_runner import TransformersRunner, load_runner

TOLERANCE = 1e-4
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def runner_of(folder: Path, device: str = "cpu", **changes: Any) -> TransformersRunner:
    spec = ModelSpec(str(folder), dtype="float32", device=device)
    return load_runner(spec, **{"kv_tokens": 1024, "measure_s": 0.0, **changes})


class Oracle:
    """The model itself, without any of our code."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        from paceline.runtime.weights import LOADING

        with LOADING:
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def row(self, tokens: list[int]) -> torch.Tensor:
        """[vocab] float32 after the last token."""
        return self.rows(tokens, 1)[0]

    @torch.inference_mode()
    def rows(self, tokens: list[int], count: int) -> torch.Tensor:
        """[count, vocab] float32 after each of the last `count` tokens, from one forward of all."""
        return self.model(torch.tensor([tokens]), use_cache=False, logits_to_keep=count).logits[0]


def prefill(runner: TransformersRunner, tokens: list[int]) -> int:
    sequence = runner.kv.open()
    runner.execute(PassPlan((Segment.chain(sequence, tokens, last_row=False),)))
    runner.kv.keep(sequence, range(len(tokens)))
    return sequence


def worst(row: torch.Tensor, other: torch.Tensor) -> float:
    return float((row.cpu() - other).abs().max())
