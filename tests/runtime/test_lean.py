"""The lean forward computes what transformers' layers compute, and is taken only where it does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.runtime import attention, padded, transformers_runner
from paceline.runtime.costs import PassCosts
from paceline.runtime.forward import ModelForward
from paceline.runtime.lean import LeanForward, NotLean, lean_forward
from paceline.runtime.models import KVShape, ModelSpec
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.transformers_runner import TransformersRunner
from paceline.runtime.weights import load_config, load_weights
from paceline.speculation.tree import DraftTree
from support.oracle import TOLERANCE, Oracle, prefill, worst
from support.tiny import tiny_model

LEAN = ["llama", "mistral", "qwen2", "qwen3"]
TREE = DraftTree.build([7, 8, 9, 10, 11], [-1, -1, 1, 0, 2])


def folder_of(path: Path, kind: str) -> Path:
    """A tiny model whose norms and biases are not what they are initialised to, so that leaving one out shows."""
    folder = tiny_model(path, kind, **({"sliding_window": 128} if kind in ("mistral", "gemma3") else {}))
    tensors = load_file(folder / "model.safetensors")
    random = torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        if "norm" in name or name.endswith("bias"):
            tensor += 0.3 * torch.randn(tensor.shape, generator=random)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def loaded(folder: Path, dtype: str = "float32") -> tuple[TransformersRunner, Any]:
    """A runner on pages of four tokens, and its model of transformers."""
    models = []

    def load(number: torch.dtype) -> Any:
        models.append(load_weights(folder, folder.name, number, attention.NAME))
        return models[0]

    runner = transformers_runner.runner_of(
        load_config(folder, folder.name), load, ModelSpec(str(folder), dtype=dtype, device="cpu"), 512,
        page_size=4, measure_s=0.0,
    )  # fmt: skip
    return runner, models[0]


def scenario(runner: TransformersRunner) -> list[torch.Tensor]:
    """Rows of passes of every kind: chunks, trees that grow, plain steps, scattered pages, padding, no rows."""
    found: list[torch.Tensor] = []

    def run(*segments: Segment) -> None:
        found.append(runner.execute(PassPlan(segments)).rows.float())

    one, two, three = (runner.kv.open() for _ in range(3))
    tokens = np.random.default_rng(0).integers(0, 64, 40).astype(np.int32)
    for start in range(0, 40, 10):  # pages of the two interleave
        run(*(Segment.chain(each, tokens[start : start + 10], last_row=start == 30) for each in (one, two)))
        for each in (one, two):
            runner.kv.keep(each, range(10))
    assert runner.kv.run(one).start is None, "the pages are scattered"
    run(
        Segment.verification(one, 5, TREE),
        Segment.chain(three, [1, 2, 3], last_row=True),
        Segment.chain(two, [6], last_row=True),
    )
    runner.kv.keep(one, [0, 2, 3])
    runner.kv.keep(three, range(3))
    run(Segment.chain(three, [4], last_row=True))
    parents = np.array([-1, -1, 0, 0, 2], dtype=np.int32)
    for first, last in ((0, 2), (2, 5)):
        run(Segment(three, tokens[first:last], parents[:last], (last - 1,)))
    runner.costs = PassCosts({1: 9.0, 2: 9.0, 4: 9.0, 6: 9.0, 16: 0.1})
    run(Segment.verification(one, 9, TREE))
    run(Segment.chain(two, [6, 7], last_row=False))
    runner.kv.keep(two, range(2))
    run(Segment.chain(two, [8], last_row=True))
    return found


def forbid(*_: object) -> None:
    raise NotLean("forbidden by the test")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.08)])
@pytest.mark.parametrize("copied", [0, padded.COPIED["cpu"]])
@pytest.mark.parametrize("kind", LEAN)
def test_every_pass_equals_transformers_layers(
    kind: str, copied: int, dtype: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measure is that of the check at load: the spread of the difference as a share of the spread of the row."""
    folder = folder_of(tmp_path, kind)
    lean, _ = loaded(folder, dtype)
    assert isinstance(lean._forward, LeanForward)
    monkeypatch.setattr(transformers_runner, "lean_forward", forbid)
    plain, _ = loaded(folder, dtype)
    assert isinstance(plain._forward, ModelForward)
    right_rows = scenario(plain)
    monkeypatch.setitem(padded.COPIED, "cpu", copied)
    for number, (found, right) in enumerate(zip(scenario(lean), right_rows, strict=True)):
        assert len(found) == len(right), number
        if len(right):
            assert float((found - right).std()) < tolerance * float(right.std()), number


class Doubled(torch.nn.Module):
    """A linear layer of another class, without a weight of the usual shape: it holds two halves."""

    def __init__(self, *linears: torch.nn.Linear) -> None:
        super().__init__()
        weight = torch.cat([each.weight for each in linears]).detach()
        self.halves = torch.nn.ParameterList([weight * 0.25, weight * 0.75])
        self.bias = None if linears[0].bias is None else torch.cat([each.bias for each in linears]).detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        assert rows.shape[0], "no rows, no call"
        made = rows @ self.halves[0].T + rows @ self.halves[1].T
        return made if self.bias is None else made + self.bias


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", LEAN)
@torch.inference_mode()
def test_linears_may_be_replaced_and_fused_or_as_they_were(kind: str, fused: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, kind)
    (before, _), (after, _), model = loaded(folder), loaded(folder), Oracle(folder).model
    for layer in model.model.layers if fused else ():
        mixer, mlp = layer.self_attn, layer.mlp
        mixer.qkv_proj = Doubled(mixer.q_proj, mixer.k_proj, mixer.v_proj)
        mlp.gate_up_proj = Doubled(mlp.gate_proj, mlp.up_proj)
        del mixer.q_proj, mixer.k_proj, mixer.v_proj, mlp.gate_proj, mlp.up_proj
        mixer.o_proj, mlp.down_proj = Doubled(mixer.o_proj), Doubled(mlp.down_proj)
    if fused:
        model.lm_head = Doubled(model.lm_head)
    after._forward = lean_forward(model, KVShape.of(model.config, kind), 128)
    for found, right in zip(scenario(after), scenario(before), strict=True):
        assert len(found) == len(right)
        if len(right):
            assert float((found - right).std()) < 1e-5 * float(right.std())


def test_rows_that_nobody_asks_for_cost_nothing(tmp_path: Path) -> None:
    runner, model = loaded(folder_of(tmp_path, "llama"))
    seen: dict[str, list[int]] = {"head": [], "last": [], "first": []}
    hooked = {
        "head": model.lm_head,
        "last": model.model.layers[-1].mlp.down_proj,
        "first": model.model.layers[0].mlp.down_proj,
    }
    for name, module in hooked.items():
        module.register_forward_hook(lambda _, inputs, __, name=name: seen[name].append(len(inputs[0])))
    sequence = prefill(runner, [1, 2, 3, 4])
    assert seen == {"head": [], "last": [], "first": [4]}
    runner.execute(PassPlan((Segment(sequence, TREE.tokens, TREE.parents, (1, 3)),)))
    assert seen == {"head": [2], "last": [2], "first": [4, 5]}


def test_other_architectures_run_through_transformers_layers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        runner, _ = loaded(folder_of(tmp_path, "gemma3"))
    assert isinstance(runner._forward, ModelForward)
    assert "Gemma3ForCausalLM is none of LlamaForCausalLM" in caplog.text


def test_a_module_it_does_not_know_is_refused(tmp_path: Path) -> None:
    _, model = loaded(folder_of(tmp_path, "llama"))
    model.model.layers[1].mlp.extra_norm = torch.nn.Identity()
    with pytest.raises(NotLean, match="an MLP has extra_norm"):
        lean_forward(model, KVShape.of(model.config, "tiny"), 256)


def test_a_window_within_the_context_is_refused(tmp_path: Path) -> None:
    _, model = loaded(folder_of(tmp_path, "mistral"))
    with pytest.raises(NotLean, match="128 tokens only"):
        lean_forward(model, KVShape.of(model.config, "tiny"), 129)


def test_where_it_differs_at_load_transformers_layers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check at load sees a wrong turn of queries and keys; the model is served, by its own layers."""
    right = LeanForward._turns
    monkeypatch.setattr(LeanForward, "_turns", lambda self, hidden, positions: right(self, hidden, 2 * positions))
    folder = folder_of(tmp_path, "llama")
    with caplog.at_level(logging.INFO):
        runner, _ = loaded(folder)
    assert isinstance(runner._forward, ModelForward)
    assert "differs from the model's own forward" in caplog.text
    rows = runner.execute(PassPlan((Segment.chain(prefill(runner, [5, 6, 7]), [8], last_row=True),)))
    assert worst(rows.logits(0, 0), Oracle(folder).row([5, 6, 7, 8])) < TOLERANCE
