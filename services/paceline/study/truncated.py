"""A drafter without training: a copy of a model with some of its layers, its own embedding, final norm and head."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from paceline.errors import InvalidField

_LAYER = re.compile(r"^(.*\blayers)\.(\d+)\.(.*)$")
_CONFIGURATION = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def truncated_model(source: Path, layers: Sequence[int], cache: Path) -> Path:
    """The folder of a copy of `source` with only `layers`, made below `cache` unless it is there.

    Args:
        source: a model folder of safetensors.
        layers: the layers that stay, ascending, counted from 0.
        cache: folder of such copies.

    Raises InvalidField if a layer is not there.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    count = int(config["num_hidden_layers"])
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < count:
        raise InvalidField("layers", list(layers), f"ascending numbers from 0 to {count - 1}")
    folder = cache / f"{source.name}-{len(layers)}-of-{count}-{_digest(source, config, layers)}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{folder.name}.lock"):
        if (folder / "config.json").is_file():
            return folder
        partial = cache / f".{folder.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        kept = {old: new for new, old in enumerate(layers)}
        tensors = {
            renamed: tensor
            for path in sorted(source.glob("*.safetensors"))
            for name, tensor in load_file(path).items()
            if (renamed := _renamed(name, kept)) is not None
        }
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        for name in _CONFIGURATION:
            if (source / name).is_file():
                shutil.copy(source / name, partial / name)
        (partial / "config.json").write_text(json.dumps(_shortened(config, layers), indent=2), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return folder


def _renamed(name: str, kept: dict[int, int]) -> str | None:
    """The tensor's name in the copy; None for one of a layer that goes."""
    match = _LAYER.match(name)
    if match is None:
        return name
    new = kept.get(int(match[2]))
    return None if new is None else f"{match[1]}.{new}.{match[3]}"


def _shortened(config: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    kinds = config.get("layer_types")
    changes: dict[str, Any] = {"num_hidden_layers": len(layers)}
    if kinds:
        changes["layer_types"] = [kinds[layer] for layer in layers]
    return {**config, **changes}


def _digest(source: Path, config: dict[str, Any], layers: Sequence[int]) -> str:
    sizes = [(path.name, path.stat().st_size) for path in sorted(source.glob("*.safetensors"))]
    return hashlib.sha256(json.dumps([config, list(layers), sizes]).encode()).hexdigest()[:8]
