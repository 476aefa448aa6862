"""Loading the configured model. Blocks for seconds: run it in a thread."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.runtime.runner import ModelRunner
from paceline.runtime.tokenizer import TextTokenizer
from paceline.target.config import TargetConfig


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and its tokenizer."""

    runner: ModelRunner
    tokenizer: TextTokenizer


def load(config: TargetConfig) -> Loaded:
    """The model the configuration names.

    Raises ModelNotFound, ModelDamaged, ModelUnsupported or InvalidField, naming model, reason and remedy.
    """
    # imported here so that a target with an injected runner starts without the model library
    from paceline.runtime.models import ModelSpec
    from paceline.runtime.store import default_store
    from paceline.runtime.tokenizer import load_tokenizer
    from paceline.runtime.transformers_runner import load_runner

    folder = str(default_store().resolve(config.model))
    tokenizer = load_tokenizer(folder)
    spec = ModelSpec(folder, name=config.model, dtype=config.dtype, device=config.device)
    return Loaded(load_runner(spec, config.kv_tokens, vocab_size=tokenizer.vocab_size), tokenizer)
