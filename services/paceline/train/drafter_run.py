"""`paceline train drafter`, from settings to a drafter folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.runtime.drafter_folder import FACTS, DrafterFacts, read_token_ids
from paceline.runtime.embedding import EmbeddingFacts
from paceline.runtime.models import ModelSpec
from paceline.train.batches import Batcher
from paceline.train.corpus import Corpus
from paceline.train.export import CHECKPOINT, begin_run, check_format, export_run
from paceline.train.metrics import TrainProgress
from paceline.train.settings import TrainSettings
from paceline.train.start import Start
from paceline.train.student import chosen_layers, initial_student
from paceline.train.target_folder import TargetFolder
from paceline.train.trainer import Split, Trainer
from paceline.train.vocabulary import frequent_tokens

RUN = "training"  # the run's folder in the drafter's


def train_drafter(
    corpus_folders: Sequence[Path],
    target: TargetFolder,
    out: Path,
    settings: TrainSettings,
    weights: str,
    progress: TrainProgress,
    stop: Callable[[], bool],
    *,
    start: Path | None = None,
    resume: bool,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any] | None:
    """Trains a drafter and writes its folder.

    Args:
        corpus_folders: the corpora.
        target: the model whose rows it holds.
        out: the drafter's folder.
        settings: of the run.
        weights: number format of the folder's weights.
        progress: is told how it goes.
        stop: asked between steps.
        start: folder of a drafter to begin with, instead of the target's layers.
        resume: goes on with the run in `out`.
        clock: seconds, ascending.

    Returns:
        Settings and figures; None if it was stopped before the end, with a checkpoint to go on from.

    Raises InvalidField, CorpusDamaged, TokenizerMismatch, ModelDamaged or ModelUnsupported.
    """
    check_format(weights, trimmed=settings.vocab is not None)
    _check_out(out, resume)
    device = ModelSpec("", device=settings.device).resolved_device()
    dtype = ModelSpec("", dtype=settings.dtype, device=settings.device).number_format().torch_dtype
    corpus = Corpus.open(*corpus_folders)
    target.check(corpus.info)
    split = _split(corpus, settings)
    if start is None:
        layers = chosen_layers(settings.layers, target.layers)
        token_ids = _head(corpus, target, settings)
        student = initial_student(target.folder, target.name, layers, token_ids, target.embedding)
    else:
        begun = Start.read(start, target, settings)
        layers, token_ids, student = begun.layers, begun.token_ids, begun.student
    embedding = EmbeddingFacts.of(target.embedding)
    columns = embedding.rows if token_ids is None else len(token_ids)
    progress.say(f"student of layers {', '.join(map(str, layers))} of {target.name}, head of {columns} tokens")
    facts = DrafterFacts(target.name, target.tokenizer.fingerprint, embedding, layers, columns, "float32", {})
    if resume and start is not None:
        kept = read_token_ids(out / RUN, facts, RUN)
        if token_ids is None or not np.array_equal(token_ids, kept):
            raise InvalidField("--start", str(start), "with --resume a drafter with the head that the run began with")
    if not resume:
        begin_run(out / RUN, student.model.config, facts, token_ids)
    info = corpus.info
    identity = {
        "corpus": {
            "target": info.target,
            "sequences": info.sequences,
            "tokens": info.tokens,
            "reply_tokens": info.reply_tokens,
        },
        "embedding": embedding.sha256,
        "layers": list(layers),
        "columns": columns,
        "start": None if start is None else start.name,
        "lengths": hashlib.sha256(split.lengths.tobytes()).hexdigest()[:16],  # of sequences, in their order
    }
    batcher = Batcher(corpus, token_ids, embedding.rows, settings.temperature, settings.argmax_weight)
    path = out / RUN / CHECKPOINT
    trainer = Trainer(student, batcher, split, settings, identity, device, dtype, path, progress, clock)
    if resume:
        trainer.resume()
    if not trainer.run(stop):
        return None
    return export_run(out / RUN, out, weights, target)


def _head(corpus: Corpus, target: TargetFolder, settings: TrainSettings) -> NDArray[np.int32] | None:
    if settings.vocab is None:
        return None
    special = target.tokenizer.eos_token_ids | set(target.tokenizer.special_ids().values())
    return frequent_tokens(corpus, settings.vocab, len(target.embedding), special)


def _split(corpus: Corpus, settings: TrainSettings) -> Split:
    held = [corpus[index] for index in range(len(corpus))]
    lengths = np.asarray([len(each.tokens) for each in held], dtype=np.int64)
    replies = np.asarray([len(each.row_ids) for each in held], dtype=np.int64)
    return Split.of(lengths, replies, settings.validation, settings.seed)


def _check_out(out: Path, resume: bool) -> None:
    kept = (out / RUN / CHECKPOINT).is_file()
    if resume and not kept:
        raise InvalidField("--resume", str(out), f"a folder with {RUN}/{CHECKPOINT}, which a run leaves")
    if not resume and (kept or (out / FACTS).is_file()):
        raise InvalidField("--out", str(out), "a folder without a run or a drafter", "Go on with a run by --resume.")
