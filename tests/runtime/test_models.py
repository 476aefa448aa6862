"""Which models are served, and how others are refused: by name, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound, ModelUnsupported
from paceline.runtime import attention
from paceline.runtime.models import ModelSpec
from paceline.runtime.transformers_runner import TransformersRunner, load_runner
from support.tiny import tiny_model


def load(folder: Path, **changes: object) -> TransformersRunner:
    return load_runner(ModelSpec(str(folder), **changes), 256, measure_s=0.0)  # type: ignore[arg-type]


def test_a_window_limits_the_context_and_says_so(tmp_path: Path) -> None:
    runner = load(tiny_model(tmp_path, "mistral", sliding_window=32))
    assert runner.info.context_length == 32
    assert "sliding_window of 32" in runner.info.context_reason


def test_a_window_on_some_layers_counts_too(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "gemma3", sliding_window=16, layer_types=["sliding_attention", "full_attention"])
    assert load(folder).info.context_length == 16


def test_a_model_without_a_window_reaches_its_positions(tmp_path: Path) -> None:
    assert load(tiny_model(tmp_path)).info.context_length == 256


def test_soft_capped_attention_is_refused(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match=r"softcap"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["mamba", "jamba_like"])
def test_recurrent_models_are_refused(kind: str, tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    if kind == "mamba":
        MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2)).save_pretrained(tmp_path)
        reason = "recurrent|context|rolled back"
    else:
        tiny_model(tmp_path, "qwen3")
        config = json.loads((tmp_path / "config.json").read_text())
        config["layer_types"] = ["linear_attention", "full_attention"]
        (tmp_path / "config.json").write_text(json.dumps(config))
        reason = "linear_attention"
    with pytest.raises(ModelUnsupported, match=reason):
        load(tmp_path)


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match="encoder-decoder"):
        load(tmp_path)


def drop_tensor(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_tied_model_has_no_head_and_works(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    load(folder)


def test_a_missing_head_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    drop_tensor(folder, "lm_head.weight")
    with pytest.raises(ModelDamaged, match=r"lm_head\.weight"):
        load(folder)


def test_a_missing_layer_tensor_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    drop_tensor(folder, "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelDamaged, match=r"layers\.1\.mlp\.up_proj"):
        load(folder)


def test_damaged_weights_are_named_with_the_remedy(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ModelDamaged, match="fetch"):
        load(folder)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load(tmp_path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(ModelUnsupported, match="does not know"):
        load(tmp_path)


def test_padding_is_not_part_of_the_vocabulary(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, vocab=64)
    runner = load_runner(ModelSpec(str(folder)), 256, vocab_size=60, measure_s=0.0)
    assert (runner.info.vocab_size, runner.info.vocab_padded) == (60, 64)


def test_the_whole_set_of_end_tokens(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, eos_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load(folder).info.eos_token_ids == {5, 7, 9}


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "float8"), ("dtype", "float16"), ("device", "tpu9"), ("device", "cuda")]
)
def test_wrong_settings_are_named(tmp_path: Path, field: str, value: str) -> None:
    if value == "cuda" and torch.cuda.is_available():
        return
    with pytest.raises(InvalidField, match=field):
        load(tiny_model(tmp_path), **{field: value})


def test_positions_that_change_with_the_length_of_a_pass_limit_the_context(tmp_path: Path) -> None:
    """longrope turns every position of a pass by other factors once one session in it is long (Phi-3)."""
    from transformers import Phi3Config, Phi3ForCausalLM

    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = Phi3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=48, bos_token_id=None,
        eos_token_id=None, pad_token_id=None, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **factors},
    )  # fmt: skip
    Phi3ForCausalLM(config).save_pretrained(tmp_path)
    info = load(tmp_path).info
    assert info.context_length == 48
    assert "longrope" in info.context_reason


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_damaged_configuration_is_named(tmp_path: Path, name: str) -> None:
    folder = tiny_model(tmp_path)
    (folder / name).write_text('{"vocab_size": 64, ')
    with pytest.raises(ModelDamaged, match=rf"{name} cannot be read.*again"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(33)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=r"norm\.weight|[Ss]ize|mismatch"):
        load(folder)


def test_a_tensor_without_a_place_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    load(folder)
    assert "q_norm" in caplog.text


def test_weights_that_overflow_are_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= 1e38
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnsupported, match="nan"):
        load(folder)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_mask_is_seen_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str) -> None:
    """The check at load can fail: here one node sees its sibling as if it were an ancestor."""
    right = attention.seen

    def wrong(parents: np.ndarray) -> list[int]:
        return right(np.where(parents == 0, np.arange(len(parents)) - 1, parents).astype(np.int32))

    folder = tiny_model(tmp_path, kind)
    load(folder, dtype=dtype)
    monkeypatch.setattr(attention, "seen", wrong)
    with pytest.raises(ModelUnsupported, match="differs from the model's own forward"):
        load(folder, dtype=dtype)


def test_attention_of_another_shape_is_refused(tmp_path: Path) -> None:
    """Keys and values of different width (multi-head latent attention)."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=2, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=4, v_head_dim=16, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match="cannot run this model"):
        load(tmp_path)


def test_a_model_that_looks_both_ways_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertLMHeadModel

    config = BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64,
    )  # fmt: skip
    BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match=f"{tmp_path.name}.*looks ahead"):
        load(tmp_path)


def test_too_little_kv_memory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="kv_tokens"):
        load_runner(ModelSpec(str(tiny_model(tmp_path))), 31)
