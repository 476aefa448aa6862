"""Whether a drafter's folder fits a target: before anything is loaded, and with the names of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import InvalidField, PacelineError, TokenizerMismatch
from paceline.runtime.drafter_folder import DrafterFacts, is_trimmed, read_facts, read_token_ids
from paceline.runtime.embedding import EmbeddingFacts, read_embedding
from paceline.runtime.tokenizer import LoadTokenizer, TextTokenizer, first_difference, load_tokenizer

Resolve = Callable[[str], Path]  # finds the folder of a model


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a distilled drafter has besides its weights."""

    facts: DrafterFacts
    token_ids: NDArray[np.int32]  # [columns]
    embedding: torch.Tensor  # [ids, width] of the target


@dataclass(frozen=True, slots=True)
class DrafterFit:
    """A drafter's folder that fits its target."""

    tokenizer: TextTokenizer
    trimmed: Trimmed | None  # None: a model of its own


def fit_drafter(
    folder: Path, name: str, target: str | None, resolve: Resolve, tokenizer_of: LoadTokenizer = load_tokenizer
) -> DrafterFit:
    """Compares a drafter's folder with its target.

    Args:
        folder: the drafter's.
        name: the drafter, for messages.
        target: the target's model; None: for a distilled drafter the one that it names, else nothing is compared.
        resolve: finds the folder of a model. Raises ModelNotFound or ModelDamaged.
        tokenizer_of: loads the tokenizer of a folder.

    Raises TokenizerMismatch naming the first difference, InvalidField for a target with another embedding, and
    ModelNotFound, ModelDamaged or ModelUnsupported.
    """
    if is_trimmed(folder):
        return _distilled(folder, name, target, resolve, tokenizer_of)
    tokenizer = tokenizer_of(folder)
    if target is not None:
        _same(name, tokenizer, target, tokenizer_of(resolve(target)))
    return DrafterFit(tokenizer, None)


def _distilled(
    folder: Path, name: str, target: str | None, resolve: Resolve, tokenizer_of: LoadTokenizer
) -> DrafterFit:
    facts = read_facts(folder, name)
    token_ids = read_token_ids(folder, facts, name)
    target = facts.target if target is None else target
    target_folder = resolve(target)
    tokenizer = tokenizer_of(target_folder)
    if tokenizer.fingerprint != facts.tokenizer_fingerprint:
        _refuse(name, facts, target, tokenizer, resolve)
    embedding = read_embedding(target_folder, target)
    found = EmbeddingFacts.of(embedding)
    if found != facts.embedding:
        raise InvalidField("drafter model", name, _allowed(facts, target, found), "Train one for this target.")
    return DrafterFit(tokenizer, Trimmed(facts, token_ids, embedding))


def _allowed(facts: DrafterFacts, target: str, found: EmbeddingFacts) -> str:
    ours = facts.embedding
    if (ours.rows, ours.width) != (found.rows, found.width):
        shapes = f"{found.rows} x {found.width}; it was trained for {facts.target} with {ours.rows} x {ours.width}"
        return f"one for {target}, whose embedding is {shapes}"
    return (
        f"one for {target}; it was trained for {facts.target}, whose embedding has other values "
        f"(SHA-256 {ours.sha256[:12]}, here {found.sha256[:12]})"
    )


def _refuse(name: str, facts: DrafterFacts, target: str, tokenizer: TextTokenizer, resolve: Resolve) -> None:
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
