"""Loads the model of a drafter: a folder of its own, or a distilled one that takes its target's embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.errors import InvalidField, ModelDamaged, PacelineError, TokenizerMismatch
from paceline.runtime import attention
from paceline.runtime.drafter_folder import DrafterFacts, is_trimmed, read_facts, read_token_ids, read_weights
from paceline.runtime.embedding import EmbeddingFacts, read_embedding
from paceline.runtime.models import ModelSpec
from paceline.runtime.student import fill, new_student
from paceline.runtime.tokenizer import TextTokenizer, first_difference, load_tokenizer
from paceline.runtime.transformers_runner import TransformersRunner, load_runner, runner_of
from paceline.runtime.weights import load_config


@dataclass(frozen=True, slots=True)
class DrafterModel:
    """A loaded drafter."""

    runner: TransformersRunner
    tokenizer_fingerprint: str


def load_drafter_model(
    spec: ModelSpec,
    kv_tokens: int,
    target: str | None,
    resolve: Callable[[str], Path],
    *,
    measure_s: float = 2.0,
) -> DrafterModel:
    """Loads the model of a drafter, and checks that it fits its target.

    Args:
        spec: its folder and how to hold it.
        kv_tokens: see `load_runner`.
        target: the target's model; None: for a distilled drafter the one that it names, else nothing is compared.
        resolve: finds the folder of a model. Raises ModelNotFound or ModelDamaged.
        measure_s: see `load_runner`.

    Raises TokenizerMismatch naming the first difference, InvalidField for a target with another embedding, and what
    `load_runner` does.
    """
    folder = Path(spec.path)
    if is_trimmed(folder):
        return _distilled(spec, folder, kv_tokens, target, resolve, measure_s)
    tokenizer = load_tokenizer(folder)
    if target is not None:
        _same(spec.name, tokenizer, target, load_tokenizer(resolve(target)))
    runner = load_runner(spec, kv_tokens, vocab_size=tokenizer.vocab_size, measure_s=measure_s)
    return DrafterModel(runner, tokenizer.fingerprint)


def _distilled(
    spec: ModelSpec,
    folder: Path,
    kv_tokens: int,
    target: str | None,
    resolve: Callable[[str], Path],
    measure_s: float,
) -> DrafterModel:
    name = spec.name or folder.name
    facts = read_facts(folder, name)
    token_ids = read_token_ids(folder, facts, name)
    target = facts.target if target is None else target
    target_folder = resolve(target)
    tokenizer = load_tokenizer(target_folder)
    if tokenizer.fingerprint != facts.tokenizer_fingerprint:
        _refuse(name, facts, target, tokenizer, resolve)
    embedding = read_embedding(target_folder, target)
    found = EmbeddingFacts.of(embedding)
    if found != facts.embedding:
        raise InvalidField("drafter model", name, _allowed(facts, target, found), "Train one for this target.")
    config = load_config(folder, name)
    if config.vocab_size != facts.embedding.rows or config.hidden_size != facts.embedding.width:
        raise ModelDamaged(f"{name}: config.json does not fit drafter.json; export the drafter again")

    def load(dtype: torch.dtype) -> Any:
        model = new_student(config, embedding.to(dtype), len(token_ids), attention.NAME, name)
        fill(model, read_weights(folder, name), name)
        return model

    runner = runner_of(
        config, load, spec, kv_tokens, vocab_size=tokenizer.vocab_size, measure_s=measure_s, token_ids=token_ids
    )
    return DrafterModel(runner, tokenizer.fingerprint)


def _allowed(facts: DrafterFacts, target: str, found: EmbeddingFacts) -> str:
    ours = facts.embedding
    if (ours.rows, ours.width) != (found.rows, found.width):
        shapes = f"{found.rows} x {found.width}; it was trained for {facts.target} with {ours.rows} x {ours.width}"
        return f"one for {target}, whose embedding is {shapes}"
    return (
        f"one for {target}; it was trained for {facts.target}, whose embedding has other values "
        f"(SHA-256 {ours.sha256[:12]}, here {found.sha256[:12]})"
    )


def _refuse(
    name: str, facts: DrafterFacts, target: str, tokenizer: TextTokenizer, resolve: Callable[[str], Path]
) -> None:
    """Names the first difference where the drafter's own target is here, else both fingerprints."""
    try:
        own = load_tokenizer(resolve(facts.target))
    except PacelineError:
        own = None
    if own is not None and own.fingerprint == facts.tokenizer_fingerprint:
        _same(f"{name} ({facts.target})", own, target, tokenizer)
    raise TokenizerMismatch(
        f"{name} and {target} differ in their tokenizers: it was trained for {facts.target}, fingerprint"
        f" {facts.tokenizer_fingerprint[:12]}, {target} has {tokenizer.fingerprint[:12]}"
    )


def _same(name: str, ours: TextTokenizer, target: str, theirs: TextTokenizer) -> None:
    difference = first_difference(ours, theirs)
    if difference is not None:
        raise TokenizerMismatch(f"{name} and {target} differ in their tokenizers: {difference}")
