"""Models of a study: a target by name, and a drafter made of some of its layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InvalidField
from paceline.prompt_file import Prompt, prompt_tokens
from paceline.runtime.costs import PassCosts
from paceline.runtime.models import ModelSpec, context_limit
from paceline.runtime.runner import ModelRunner
from paceline.runtime.store import default_store, home_folder
from paceline.runtime.tokenizer import TextTokenizer, load_tokenizer
from paceline.runtime.transformers_runner import load_runner
from paceline.runtime.weights import load_config
from paceline.study.parts import Parts
from paceline.study.truncated import truncated_model

DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target."""

    name: str
    folder: Path
    tokenizer: TextTokenizer
    runner: ModelRunner

    def prompt_tokens(self, prompt: Prompt, limit: int) -> list[int]:
        """A prompt as the model takes it: one user turn, or plain text where there is no chat template."""
        return prompt_tokens(self.tokenizer, prompt.text, limit)


def load_target(name: str, kv_tokens: int, measure_s: float = 2.0) -> Target:
    """Loads a target in float32, its passes timed for `measure_s` seconds, and up to five times that if it must be."""
    folder = default_store().resolve(name)
    tokenizer = load_tokenizer(folder)
    spec = ModelSpec(str(folder), name=name, dtype=DTYPE)
    return Target(
        name, folder, tokenizer, load_runner(spec, kv_tokens, vocab_size=tokenizer.vocab_size, measure_s=measure_s)
    )


def load_drafter(target: Target, layers: Sequence[int], kv_tokens: int, measure_s: float = 2.0) -> ModelRunner:
    """Loads the copy of the target that has only `layers`, made in the home folder unless it is there."""
    folder = truncated_model(target.folder, layers, home_folder(os.environ) / "truncated")
    spec, vocab_size = ModelSpec(str(folder), dtype=DTYPE), target.tokenizer.vocab_size
    return load_runner(spec, kv_tokens, vocab_size=vocab_size, measure_s=measure_s)


def check_reply(option: str, new_tokens: int, model: str, folder: Path, prompts: Sequence[Sequence[int]]) -> None:
    """Raises InvalidField naming `option` if replies of `new_tokens` to these prompts do not fit the context."""
    limit = context_limit(load_config(folder, model).get_text_config(decoder=True), model)
    most = limit.tokens - max(map(len, prompts))
    if new_tokens > most:
        raise InvalidField(option, new_tokens, f"at most {most}, for {limit.tokens} tokens with the longest prompt")


def layer_list(text: str) -> tuple[int, ...]:
    """Layers from "0-9,20,25-29". Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def kept_costs(parts: Parts, key: str, runner: ModelRunner) -> PassCosts:
    """Measured pass costs of `runner`, as a part of the study: a run that goes on counts with the same ones."""
    timed = parts.made(key, lambda: runner.costs.seconds_by_size)
    return PassCosts({int(size): seconds for size, seconds in timed.items()})
