"""The target of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.errors import InvalidField, TokenizerMismatch
from paceline.runtime.embedding import read_embedding
from paceline.runtime.tokenizer import TextTokenizer, load_tokenizer
from paceline.runtime.weights import load_config
from paceline.train.corpus import CorpusInfo


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """What a run needs of its target before the weights."""

    name: str  # as the user gave it
    folder: Path
    tokenizer: TextTokenizer
    embedding: torch.Tensor  # [ids, width]
    layers: int  # it has

    @classmethod
    def open(cls, name: str, folder: Path) -> TargetFolder:
        """Reads it. Raises ModelNotFound, ModelDamaged or ModelUnsupported."""
        text = load_config(folder, name).get_text_config(decoder=True)
        return cls(name, folder, load_tokenizer(folder), read_embedding(folder, name), int(text.num_hidden_layers))

    def check(self, info: CorpusInfo) -> None:
        """Raises TokenizerMismatch or InvalidField for a corpus whose ids are not the target's."""
        if info.tokenizer_fingerprint != self.tokenizer.fingerprint:
            raise TokenizerMismatch(
                f"--corpus holds ids of the tokenizer of {info.target} ({info.tokenizer_fingerprint[:12]}), --target is"
                f" {self.name} ({self.tokenizer.fingerprint[:12]}); make a corpus with this target"
            )
        if info.vocab_size > len(self.embedding):
            allowed = f"at most {len(self.embedding)}, the ids of {self.name}"
            raise InvalidField("--corpus, vocab_size", info.vocab_size, allowed)
