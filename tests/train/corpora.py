"""A target and a corpus of its own greedy and drawn replies, all tiny."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from paceline.runtime.tokenizer import load_tokenizer
from paceline.train.corpus import CorpusInfo, Written, write_info, write_shard
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

TOKENS = 300  # of the tokenizer
ROWS = 8


@dataclass(frozen=True)
class Taught:
    """A target and what it wrote."""

    target: Path
    corpus: Path


def taught(folder: Path, kind: str = "llama", *, sequences: int = 96, vocab: int = 320, **changes: object) -> Taught:
    """A target of five layers and its corpus, below `folder`."""
    target = save_tokenizer(
        tiny_model(folder / "target", kind, vocab=vocab, num_hidden_layers=5, **changes), byte_level_tokenizer(TOKENS)
    )
    return Taught(target, corpus_of(target, folder / "corpus", sequences))


@torch.inference_mode()
def corpus_of(target: Path, folder: Path, sequences: int, seed: int = 0) -> Path:
    """Sequences of 4 to 12 prompt tokens and 6 to 24 reply tokens, half greedy, half drawn."""
    model = AutoModelForCausalLM.from_pretrained(target)
    random = np.random.default_rng(seed)
    written = []
    for number in range(sequences):
        prompt = random.integers(0, TOKENS, random.integers(4, 13)).tolist()
        tokens, ids, logs = list(prompt), [], []
        for _ in range(random.integers(6, 25)):
            row = model(torch.tensor([tokens])).logits[0, -1, :TOKENS].float().log_softmax(0)
            top = row.topk(ROWS)
            ids.append(top.indices.numpy())
            logs.append(top.values.numpy())
            tokens.append(int(top.indices[0] if number % 2 else random.choice(TOKENS, p=_probs(row))))
        written.append(
            Written(
                np.asarray(tokens, np.int32),
                len(prompt),
                float(number % 2 == 0),
                np.stack(ids).astype(np.int32),
                np.stack(logs).astype(np.float16),
            )
        )
    half = len(written) // 2
    shards = (write_shard(folder, "000000", written[:half]), write_shard(folder, "000001", written[half:]))
    fingerprint = load_tokenizer(target).fingerprint
    write_info(folder, CorpusInfo(str(target), fingerprint, TOKENS, ROWS, {}, shards))
    return folder


def _probs(row: torch.Tensor) -> np.ndarray:
    probs = row.double().exp().numpy()
    return probs / probs.sum()
