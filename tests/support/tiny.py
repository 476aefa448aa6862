"""Tiny random transformers models and tokenizers, saved as a user's folder would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TEXT = ["the code is K-0417", "Příliš žluťoučký kůň", "안녕 세상", "one two three 👩‍👩‍👧 ok", "END ENGINE"]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}


def tiny_model(folder: Path, kind: str = "llama", *, vocab: int = 64, seed: int = 0, **changes: Any) -> Path:
    """A two-layer model with grouped queries; `changes` override its configuration."""
    torch.manual_seed(seed)
    config_class, model_class = KINDS[kind]
    settings = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "initializer_range": 0.3,  # rows that are far from even, so that errors show
    }
    model = model_class(config_class(**{**settings, **changes}))
    model.save_pretrained(folder)
    return folder


def byte_level_tokenizer(size: int = 400) -> Tokenizer:
    """Byte-level BPE, as Llama 3, Qwen and SmolLM use it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def metaspace_tokenizer(size: int = 400) -> Tokenizer:
    """BPE over spaces marked as in SentencePiece, with single bytes for unknown characters, as Llama 2 uses it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<eos>"])
    tokenizer.train_from_iterator(["the code is one two three ok"], trainer)
    tokenizer.add_tokens(bytes_)
    # Byte tokens must be part of the model for byte fallback, so the model is rebuilt with them.
    vocab = tokenizer.get_vocab()
    rebuilt = models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    tokenizer.model = rebuilt
    return tokenizer


def save_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, *, eos: str | None = "<eos>") -> Path:
    """Saves a tokenizer with a chat template into a model folder."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer or byte_level_tokenizer(), eos_token=eos)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder
