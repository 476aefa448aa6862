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
    prompts, replies = random.integers(4, 13, sequences), random.integers(6, 25, sequences)
    tokens = torch.from_numpy(random.integers(0, TOKENS, (sequences, 36)))
    every = torch.arange(sequences)
    ids, logs = [], []
    for step in range(int(replies.max())):
        ends = torch.from_numpy(prompts) + step  # what is behind an end is overwritten, and nothing looks at it
        rows = model(tokens).logits[every, ends - 1, :TOKENS].float().log_softmax(1)
        top = rows.topk(ROWS)
        ids.append(top.indices.numpy().astype(np.int32))
        logs.append(top.values.numpy().astype(np.float16))
        drawn = torch.multinomial(rows.exp(), 1, generator=torch.Generator().manual_seed(step))[:, 0]
        tokens[every, ends] = torch.where(every % 2 == 0, drawn, top.indices[:, 0])
    written = [
        Written(
            tokens[number, : prompts[number] + reply].numpy().astype(np.int32),
            int(prompts[number]),
            float(number % 2 == 0),
            np.stack([row[number] for row in ids[:reply]]),
            np.stack([row[number] for row in logs[:reply]]),
        )
        for number, reply in enumerate(replies)
    ]
    half = len(written) // 2
    shards = (write_shard(folder, "000000", written[:half]), write_shard(folder, "000001", written[half:]))
    fingerprint = load_tokenizer(target).fingerprint
    write_info(folder, CorpusInfo(str(target), fingerprint, TOKENS, ROWS, {}, shards))
    return folder
