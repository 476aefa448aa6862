"""Drafted equals plain with low-bit weights, by the near-tie rule: attention's kernels round by the pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.runtime.models import ModelSpec
from paceline.runtime.number_format import usable
from paceline.runtime.transformers_runner import load_runner
from paceline.speculation.sampling import SamplingParams
from paceline.study.bare import BareModel
from paceline.study.equality import Judge
from support.tiny import tiny_model
from target import drafters
from target.rig import plain, request, running, sampled

VOCAB = 64
LOW_BIT = [each for each in usable(torch.device("cpu")) if each.startswith("int")]


@pytest.mark.parametrize("dtype", LOW_BIT)
def test_drafted_equals_plain(dtype: str, tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "qwen3", vocab=VOCAB)
    runner = load_runner(ModelSpec(str(folder), device="cpu", dtype=dtype), kv_tokens=1024, measure_s=0.0)
    judge = Judge(BareModel(folder, dtype))
    equal = 0
    cases = [(3, SamplingParams()), (17, sampled(0.9, 5)), (40, SamplingParams()), (40, sampled(1.2, 7))]
    for length, params in cases:
        prompt = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
        wanted = request(prompt, 60, sampling=params)
        expected = plain(runner, wanted)
        with running(runner, drafters.bushy(prompt, expected, VOCAB, seed=length)) as rig:
            tokens, finish = rig.decode(wanted)
        assert finish.stats.accepted > 10
        at = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), None)
        equal += at is None
        if at is not None:
            assert judge.near_tie([*prompt, *expected[:at]], tokens[at], expected[at], params), (length, params, at)
    assert equal > len(cases) // 2, "near-ties are rare"
