"""A proposer from settings."""

from __future__ import annotations

from paceline.drafter.config import DrafterConfig
from paceline.drafter.known_rows import KnownRows
from paceline.drafter.proposer import Proposer
from paceline.drafter.suffix import SuffixProposer
from paceline.errors import TokenizerMismatch
from paceline.runtime.store import default_store
from paceline.runtime.tokenizer import first_difference, load_tokenizer


def load_proposer(config: DrafterConfig) -> Proposer:
    """Builds the proposer, loading a model where it needs one.

    Raises ModelNotFound, ModelDamaged, ModelUnsupported, or TokenizerMismatch naming the first difference.
    """
    known = KnownRows(config.known_rows)
    if config.proposer == "suffix" or config.model is None:
        return SuffixProposer(config.store_tokens, config.max_depth, config.min_path_prob, known)
    from paceline.drafter.model import ModelProposer
    from paceline.runtime.models import ModelSpec
    from paceline.runtime.transformers_runner import load_runner

    store = default_store()
    folder = store.resolve(config.model)
    tokenizer = load_tokenizer(folder)
    if config.target_model is not None:
        difference = first_difference(tokenizer, load_tokenizer(store.resolve(config.target_model)))
        if difference is not None:
            raise TokenizerMismatch(
                f"{config.model} and {config.target_model} differ in their tokenizers: {difference}"
            )
    spec = ModelSpec(str(folder), name=config.model, dtype=config.dtype, device=config.device)
    runner = load_runner(spec, config.kv_tokens, vocab_size=tokenizer.vocab_size)
    return ModelProposer(
        runner,
        tokenizer.fingerprint,
        max_depth=config.max_depth,
        width=config.width,
        step_tokens=config.step_tokens,
        min_path_prob=config.min_path_prob,
        known=known,
    )
