"""Linear layers of loaded models: fused, replaced, and refused by name where a format does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Phi3Config, Phi3ForCausalLM

from paceline.errors import InvalidField
from paceline.runtime import number_format
from paceline.runtime.fused_linear import Part, Together, fuse_linears
from paceline.runtime.int4_linear import Int4Linear
from paceline.runtime.int8_linear import Int8Linear
from paceline.runtime.linears import prepare_linears
from paceline.runtime.models import ModelSpec
from paceline.runtime.number_format import FORMATS, usable
from paceline.runtime.packed_linear import PackedLinear, is_packable
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.transformers_runner import load_runner
from support.oracle import Oracle
from support.tiny import tiny_model

CPU = torch.device("cpu")
IDS = torch.arange(12)[None] * 5 % 64
low_bit = pytest.mark.skipif("int4" not in usable(CPU), reason="this processor has no low-bit kernels")
packed = pytest.mark.skipif(not is_packable(torch.float32, CPU), reason="torch was built without oneDNN")
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {}),
        ("mistral", {}),
        ("gemma3", {}),
    ],
)
def test_fused_projections_compute_the_same(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = Oracle(tiny_model(tmp_path, kind, **changes)).model
    for name, each in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(each)
    right = logits(model)
    fuse_linears(model)
    calls: list[tuple[str, int]] = []
    for name, module in model.named_modules():
        if name.endswith(("qkv_proj", "gate_up_proj")):
            assert type(module) is torch.nn.Linear
            module.register_forward_hook(lambda module, given, made, name=name: calls.append((name, made.shape[-1])))
    for _ in range(2):
        assert torch.allclose(logits(model), right, rtol=0, atol=1e-5)
    once = [
        (f"model.layers.{n}.{part}", width)
        for n in (0, 1)
        for part, width in (("self_attn.qkv_proj", 64), ("mlp.gate_up_proj", 128))
    ]
    assert calls == once * 2, "each computed once a pass"


def test_a_part_is_right_in_any_order_and_after_its_input_changed() -> None:
    parent, linear = torch.nn.Module(), torch.nn.Linear(4, 6)
    parent.add_module("qkv_proj", linear)
    together = Together(parent, "qkv_proj", [3, 2, 1])
    first, second, third = (Part(together, number) for number in range(3))
    values = torch.randn(5, 4)
    right = linear(values).split([3, 2, 1], -1)
    assert torch.equal(third(values), right[2])
    assert torch.equal(first(values), right[0])
    values.add_(1)  # a buffer that the next pass fills anew, while a part of the last one was never asked for
    right = linear(values).split([3, 2, 1], -1)
    assert torch.equal(first(values), right[0])
    assert torch.equal(second(values.clone()), right[1])


def test_a_model_that_is_fused_already_is_left_alone() -> None:
    model = Phi3ForCausalLM(Phi3Config(**SMALL)).eval()
    right, before = logits(model), list(model.state_dict())
    fuse_linears(model)
    assert list(model.state_dict()) == before
    assert torch.equal(logits(model), right)


@packed
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_weights_compute_the_same(dtype: torch.dtype, bound: float, bias: bool) -> None:
    if not is_packable(dtype, CPU):
        pytest.skip("this processor has no kernels for bfloat16")
    linear = torch.nn.Linear(96, 80, bias=bias).requires_grad_(False)
    found = PackedLinear(linear.to(dtype))
    exact = linear.double()  # the weights as they were rounded
    for rows in (1, 2, 3, 8, 9, 33):
        values = torch.randn(rows, 96).to(dtype)
        right = exact(values.double())
        assert found(values).dtype is dtype
        assert float((found(values).double() - right).abs().max()) < bound * float(right.abs().max()) * 4
        assert torch.equal(found(values[None])[0], found(values)), "leading axes change nothing"
    every = torch.randn(5, 192).to(dtype)[:, ::2]
    assert torch.equal(found(every), found(every.contiguous())), "strides change nothing"


@low_bit
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3"])
@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.05), ("int4", 0.5)])
def test_rows_stay_near_float32(kind: str, dtype: str, bound: float, tmp_path: Path) -> None:
    """Random weights have no structure to spare: four bits move a row by some tenths of its spread, not more."""
    folder = tiny_model(tmp_path, kind)
    runner = load_runner(ModelSpec(str(folder), dtype=dtype, device="cpu"), 256, measure_s=0.0)
    assert runner.info.dtype == dtype
    assert runner.info.vocab_padded == 64
    rows = runner.execute(PassPlan((Segment.chain(runner.kv.open(), IDS[0].tolist(), last_row=True),)))
    right = Oracle(folder).row(IDS[0].tolist())
    found = float((rows.logits(0, IDS.shape[1] - 1) - right).std() / right.std())
    assert 0 < found < bound


@pytest.mark.parametrize(
    ("dtype", "inner", "head"),
    [
        pytest.param("float32", PackedLinear, PackedLinear, marks=packed),
        pytest.param("int8", Int8Linear, Int8Linear, marks=low_bit),
        pytest.param("int4", Int4Linear, Int8Linear, marks=low_bit),
    ],
)
def test_every_linear_layer_is_replaced_and_the_embedding_is_not(
    dtype: str, inner: type, head: type, tmp_path: Path
) -> None:
    model: LlamaForCausalLM = Oracle(tiny_model(tmp_path, tie_word_embeddings=True)).model
    table = model.get_input_embeddings().weight.clone()
    prepare_linears(model, FORMATS[dtype], "tiny", chosen=True)
    kinds = {name: type(each) for name, each in model.named_modules() if isinstance(each, inner | head)}
    per_layer = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    wanted = {f"model.layers.{layer}.{each}": inner for layer in (0, 1) for each in per_layer}
    assert kinds == {**wanted, "lm_head": head}
    assert not any(type(each) is torch.nn.Linear for each in model.modules())
    assert torch.equal(model.get_input_embeddings().weight, table)


@low_bit
def test_a_format_that_does_not_fit_is_refused_by_name_and_left_out_by_auto(tmp_path: Path) -> None:
    narrow = tiny_model(tmp_path / "narrow", intermediate_size=72)
    with pytest.raises(
        InvalidField, match=r"dtype: got 'int4', .*float32.*down_proj is 72 by 32; int4 takes multiples"
    ):
        load_runner(ModelSpec(str(narrow), dtype="int4", device="cpu"), 64, measure_s=0.0)
    assert load_runner(ModelSpec(str(narrow), dtype="int8", device="cpu"), 64, measure_s=0.0).info.dtype == "int8"
    experts = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=2))
    with pytest.raises(InvalidField, match=r"dtype: got 'int8', .* is not the weight of a linear layer"):
        prepare_linears(experts, FORMATS["int8"], "tiny", chosen=True)
    assert prepare_linears(experts, FORMATS["int8"], "tiny", chosen=False).name == "float32"


def test_formats_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidField, match="dtype: got 'int2', allowed: auto, float32, bfloat16, int8, int4"):
        ModelSpec("", dtype="int2", device="cpu").number_format()
    assert ModelSpec("", device="cpu").number_format().name == "float32"
    drafts = ModelSpec("", device="cpu", drafts=True)
    assert drafts.number_format().name == ("int8" if "int8" in usable(CPU) else "float32")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert drafts.number_format().name == "float32"
    for dtype in ("int8", "int4"):
        with pytest.raises(
            InvalidField, match=f"got '{dtype}', allowed: auto, float32, bfloat16 on this device. .*AVX"
        ):
            ModelSpec("", dtype=dtype, device="cpu").number_format()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InvalidField, match="a GPU has bfloat16"):
        ModelSpec("", dtype="int8", device="cuda").number_format()
    assert ModelSpec("", device="cuda", drafts=True).number_format().name == "bfloat16"


@low_bit
def test_a_processor_that_saturates_has_no_low_bit_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_format, "multiply_bytes", lambda *given: torch.full((1, 16), 32767.0))
    assert list(usable(CPU)) == ["float32", "bfloat16"]
