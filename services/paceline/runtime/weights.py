"""Reads a model folder: configuration and weights, or an error that names what is wrong with it."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.errors import ModelDamaged, ModelNotFound, ModelUnsupported

log = logging.getLogger(__name__)

# transformers replaces methods of its base class while it loads a model; two loads at once leave the replacements in
# place for good, and every tied model loaded later has no head.
LOADING = threading.Lock()
REMEDY = "fetch or copy the model again"


def load_config(folder: Path, name: str) -> Any:
    """The model's configuration. Raises ModelNotFound, ModelDamaged or ModelUnsupported."""
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{name}: {folder} is not a model folder: it holds no config.json")
    for path in sorted(folder.glob("*.json")):
        _check_json(path, name)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each model's configuration class has checks, and errors, of its own
        raise ModelUnsupported(f"{name}: transformers does not know this model: {first_line(error)}") from error


def load_weights(folder: Path, name: str, dtype: torch.dtype, attention: str) -> Any:
    """The model with its weights, all of them: transformers fills a missing tensor at random, and only mentions it.

    Args:
        folder: the model folder.
        name: the model, for messages.
        dtype: number format of the weights.
        attention: name of the attention function.

    Raises ModelUnsupported or ModelDamaged.
    """
    try:
        with LOADING:
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=attention, local_files_only=True, output_loading_info=True
            )
    except (ValueError, KeyError, ImportError, AttributeError) as error:
        reason = first_line(error)
        raise ModelUnsupported(f"{name}: transformers cannot load it as a causal model: {reason}") from error
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # safetensors and the file system raise their own types for a damaged file
        raise ModelDamaged(f"{name}: its weights cannot be read: {first_line(error)}; {REMEDY}") from error
    if type(model)._is_stateful:
        raise ModelUnsupported(f"{name}: it keeps a recurrent state, which cannot be rolled back along a draft tree")
    if not type(model)._supports_attention_backend:
        raise ModelUnsupported(f"{name}: its attention cannot be replaced (no attention backend in transformers)")
    if missing := sorted(loading["missing_keys"]):
        raise ModelDamaged(f"{name}: the checkpoint lacks {_some(missing)}; {REMEDY}")
    if mismatched := sorted(str(key) for key in loading["mismatched_keys"]):
        raise ModelDamaged(f"{name}: tensors differ in shape from the configuration: {_some(mismatched)}")
    if unexpected := sorted(loading["unexpected_keys"]):
        log.warning("%s: tensors of the checkpoint that the model has no place for: %s", name, _some(unexpected))
    return model


def first_line(error: BaseException) -> str:
    """What an error says, without the rest."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _check_json(path: Path, name: str) -> None:
    """transformers falls back to defaults where some of these files cannot be read."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDamaged(f"{name}: {path.name} cannot be read: {first_line(error)}; {REMEDY}") from error


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
