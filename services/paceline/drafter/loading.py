"""A proposer from settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.drafter.config import DrafterConfig
from paceline.drafter.fused import FusedProposer
from paceline.drafter.keeper import StoreKeeper
from paceline.drafter.known_rows import KnownRows
from paceline.drafter.looks import MeasuredTimes
from paceline.drafter.model import ModelProposer
from paceline.drafter.proposer import Proposer
from paceline.drafter.store_file import Tokenizer, read_store
from paceline.drafter.suffix import SuffixProposer
from paceline.drafter.text_store import MB, TextStore
from paceline.errors import InvalidField
from paceline.runtime.shipped import TEXTS
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import LoadTokenizer, load_tokenizer

if TYPE_CHECKING:  # a replica without a model imports no transformers
    from paceline.runtime.drafter_runner import DrafterModel


@dataclass(frozen=True, slots=True)
class KeptStore:
    """The store of a replica, and what loads and saves it."""

    store: TextStore
    keeper: StoreKeeper | None = None  # None without a file
    tokenizer_fingerprint: str = ""  # of the ids of the file; empty without one


def load_store(config: DrafterConfig, tokenizer_of: LoadTokenizer = load_tokenizer) -> KeptStore:
    """The store, with the texts of a fused drafter's folder, and then those of its own file, queued to be learned.

    `tokenizer_of` loads the tokenizer of a folder. Raises InvalidField or TokenizerMismatch naming the file, and what
    `load_tokenizer` raises of the target's folder.
    """
    store = TextStore(int(config.store_mb * MB), keep_texts=config.store_file is not None and config.store_save_s > 0)
    given = _given_texts(config)
    if config.store_file is None and given is None:
        return KeptStore(store)
    target = config.target_model
    if target is None and given is not None:
        from paceline.runtime.drafter_folder import read_facts

        target = read_facts(given.parent, str(config.model)).target
    if target is None:
        remedy = "The file's ids are of one tokenizer."
        raise InvalidField("target_model", None, "the target's model, since store_file is set", remedy)
    theirs = tokenizer_of(default_store().resolve(target))
    tokenizer = Tokenizer(target, theirs.fingerprint, theirs.vocab_size)
    if given is not None:
        store.preload(read_store(given, tokenizer, TEXTS), saved=False)
    keeper = None
    if config.store_file is not None:
        keeper = StoreKeeper(store, Path(config.store_file), tokenizer, config.store_save_s)
        keeper.load()
    return KeptStore(store, keeper, tokenizer.fingerprint)


def _given_texts(config: DrafterConfig) -> Path | None:
    """The texts in the folder of a fused drafter's model, if it has some and they can be remembered."""
    if config.proposer != "fused" or config.model is None or config.store_mb == 0:
        return None
    path = default_store().resolve(config.model) / TEXTS
    return path if path.is_file() else None


def load_proposer(
    config: DrafterConfig, kept: KeptStore | None = None, tokenizer_of: LoadTokenizer = load_tokenizer
) -> Proposer:
    """Builds the proposer around the replica's store (None: one of its own), loading a model where it needs one.

    `tokenizer_of` loads the tokenizer of a folder. Raises ModelNotFound, ModelDamaged, ModelUnsupported,
    TokenizerMismatch naming the first difference, or InvalidField for a distilled drafter of another target.
    """
    known = KnownRows(config.known_rows)
    if config.has_model:
        model = _load_model(config, tokenizer_of)
    if config.proposer == "model":
        return ModelProposer(
            model.runner,
            model.tokenizer_fingerprint,
            max_depth=config.max_depth,
            width=config.width,
            step_tokens=config.step_tokens,
            min_path_prob=config.min_path_prob,
            known=known,
        )
    kept = kept or load_store(config, tokenizer_of)
    suffix = SuffixProposer(kept.store, config.max_depth, config.min_path_prob, known, kept.tokenizer_fingerprint)
    if config.proposer == "suffix":
        return suffix
    return FusedProposer(
        suffix,
        model.runner,
        model.tokenizer_fingerprint,
        max_depth=config.max_depth,
        width=config.width,
        step_tokens=config.step_tokens,
        min_path_prob=config.min_path_prob,
        times=MeasuredTimes(model.runner.costs),
        known=known,
    )


def _load_model(config: DrafterConfig, tokenizer_of: LoadTokenizer) -> DrafterModel:
    from paceline.runtime.drafter_runner import load_drafter_model
    from paceline.runtime.models import ModelSpec

    assert config.model is not None, "checked with the settings"
    store = default_store()
    folder = str(store.resolve(config.model))
    spec = ModelSpec(folder, name=config.model, dtype=config.dtype, device=config.device, drafts=True)
    return load_drafter_model(spec, config.kv_tokens, config.target_model, store.resolve, tokenizer_of)
