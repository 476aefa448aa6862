"""`paceline train drafter`, from settings to a drafter folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import InvalidField, TokenizerMismatch
from paceline.runtime.drafter_folder import FACTS, DrafterFacts
from paceline.runtime.embedding import EmbeddingFacts, read_embedding
from paceline.runtime.models import ModelSpec
from paceline.runtime.tokenizer import TextTokenizer, load_tokenizer
from paceline.runtime.weights import load_config
from paceline.train.batches import Batcher
from paceline.train.checkpoint import Checkpoint
from paceline.train.corpus import Corpus
from paceline.train.export import check_format, export
from paceline.train.metrics import TrainProgress
from paceline.train.settings import TrainSettings
from paceline.train.student import chosen_layers, initial_student
from paceline.train.trainer import Split, Trainer
from paceline.train.vocabulary import frequent_tokens

CHECKPOINT = Path("training") / "checkpoint.pt"  # in the output folder


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """The target of a run."""

    name: str  # as the user gave it
    folder: Path
    tokenizer: TextTokenizer
    embedding: torch.Tensor  # [ids, width]
    layers: int  # it has

    @classmethod
    def open(cls, name: str, folder: Path) -> TargetFolder:
        """Reads what a run needs before the weights. Raises ModelNotFound, ModelDamaged or ModelUnsupported."""
        text = load_config(folder, name).get_text_config(decoder=True)
        return cls(name, folder, load_tokenizer(folder), read_embedding(folder, name), int(text.num_hidden_layers))


def train_drafter(
    corpus_folder: Path,
    target: TargetFolder,
    out: Path,
    settings: TrainSettings,
    weights: str,
    progress: TrainProgress,
    stop: Callable[[], bool],
    *,
    resume: bool,
) -> dict[str, Any] | None:
    """Trains a drafter and writes its folder; None if it was stopped before the end, with a checkpoint to go on from.

    Args:
        corpus_folder: the corpus.
        target: the model whose rows it holds.
        out: the drafter's folder.
        settings: of the run.
        weights: number format of the folder's weights.
        progress: is told how it goes.
        stop: asked between steps.
        resume: goes on with the run in `out`.

    Raises InvalidField, CorpusDamaged, TokenizerMismatch, ModelDamaged or ModelUnsupported.
    """
    check_format(weights, settings.vocab)
    _check_out(out, resume)
    device = ModelSpec("", device=settings.device).resolved_device()
    dtype = ModelSpec("", dtype=settings.dtype, device=settings.device).resolved_dtype()
    corpus = Corpus.open(corpus_folder)
    check_corpus(corpus, target)
    layers = chosen_layers(settings.layers, target.layers)
    token_ids = _head(corpus, target, settings)
    columns = len(target.embedding) if token_ids is None else len(token_ids)
    progress.say(f"student of layers {', '.join(map(str, layers))} of {target.name}, head of {columns} tokens")
    torch.manual_seed(settings.seed)
    student = initial_student(target.folder, target.name, layers, token_ids, target.embedding)
    facts = EmbeddingFacts.of(target.embedding)
    split = _split(corpus, settings)
    identity = {
        "corpus": [corpus.info.sequences, corpus.info.tokens, corpus.info.reply_tokens],
        "tokenizer": target.tokenizer.fingerprint,
        "embedding": facts.sha256,
        "layers": list(layers),
        "columns": columns,
    }
    batcher = Batcher(corpus, token_ids, len(target.embedding), settings.temperature, settings.argmax_weight)
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(student, batcher, split, settings, identity, device, dtype, out / CHECKPOINT, progress)
    if resume:
        trainer.resume()
    if not trainer.run(stop):
        return None
    figures = figures_of(Checkpoint.read(out / CHECKPOINT), corpus)
    drafter = DrafterFacts(target.name, target.tokenizer.fingerprint, facts, layers, columns, weights, training=figures)
    export(out, student, drafter, target.folder)
    return figures


def check_corpus(corpus: Corpus, target: TargetFolder) -> None:
    """Raises TokenizerMismatch or InvalidField for a corpus whose ids are not the target's."""
    info = corpus.info
    if info.tokenizer_fingerprint != target.tokenizer.fingerprint:
        raise TokenizerMismatch(
            f"--corpus holds ids of the tokenizer of {info.target} ({info.tokenizer_fingerprint[:12]}), --target is"
            f" {target.name} ({target.tokenizer.fingerprint[:12]}); make a corpus with this target"
        )
    if info.vocab_size > len(target.embedding):
        allowed = f"at most {len(target.embedding)}, the ids of {target.name}"
        raise InvalidField("--corpus, vocab_size", info.vocab_size, allowed)


def figures_of(held: Checkpoint, corpus: Corpus) -> dict[str, Any]:
    """Settings and figures of a run, for `drafter.json` and the last line."""
    info, place = corpus.info, held.place
    return {
        "settings": held.settings,
        "corpus": {"target": info.target, "sequences": info.sequences, "reply_tokens": info.reply_tokens},
        "steps": place.step,
        "tokens": place.tokens,
        "seconds": round(place.seconds, 1),
        "tokens_per_s": round(place.tokens / max(place.seconds, 1e-9), 1),
        "untrained": place.metrics[0],
        "validation": place.metrics[-1],
    }


def _head(corpus: Corpus, target: TargetFolder, settings: TrainSettings) -> NDArray[np.int32] | None:
    if settings.vocab is None:
        return None
    special = target.tokenizer.eos_token_ids | set(target.tokenizer.special_ids().values())
    return frequent_tokens(corpus, settings.vocab, len(target.embedding), special)


def _split(corpus: Corpus, settings: TrainSettings) -> Split:
    sizes = [(len(each.tokens), len(each.row_ids)) for each in (corpus[index] for index in range(len(corpus)))]
    lengths = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)
    return Split.of(lengths[:, 0], lengths[:, 1], settings.validation, settings.seed)


def _check_out(out: Path, resume: bool) -> None:
    kept = (out / CHECKPOINT).is_file()
    if resume and not kept:
        raise InvalidField("--resume", str(out), f"a folder with {CHECKPOINT}, which a run leaves", "Leave it out.")
    if not resume and (kept or (out / FACTS).is_file()):
        raise InvalidField("--out", str(out), "a folder without a run or a drafter", "Go on with it by --resume.")
