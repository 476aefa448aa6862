"""One-time conversion of a GGUF file to a transformers folder, checked against what the file says of its text."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelDamaged

CONVERSION = 2  # raised when the result of converting the same file changes, so that older results are made anew
_CONTROL = 3  # GGUF's token type of tokens that are not text


@dataclass(frozen=True, slots=True)
class GgufText:
    """What a GGUF file says of its tokenizer."""

    tokens: list[str]  # by id
    control: frozenset[int]  # ids that are not text
    eos: int | None
    chat_template: str | None
    pre: str  # llama.cpp's name of the way in which text is split before merging


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes safetensors (float32), configuration and tokenizer of `gguf` into `folder`, which exists.

    Raises ModelDamaged if the file cannot be read, or if its text would not come out as the file says; OSError if the
    folder cannot be written.
    """
    with _quiet():
        try:
            text = read_text_of(gguf)
            tokenizer, model = _loaded(gguf)
        except Exception as error:  # the GGUF readers raise many types for a damaged file
            raise ModelDamaged(f"{gguf.name} cannot be converted: {error}; fetch it again") from error
        _restore_splitting(tokenizer, text.pre)
        try:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except OSError:
            raise
        except Exception as error:  # safetensors has an error type of its own, for a full disk too
            raise OSError(f"writing {folder}: {error}") from error
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes for its owner alone, but a store may be shared
    check_text(folder, text)


def _loaded(gguf: Path) -> tuple[Any, Any]:
    """Tokenizer and float32 model, as transformers reads them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from paceline.runtime.weights import LOADING

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with LOADING:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    return tokenizer, model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the libraries' own progress bars off the terminal, where ours is."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]
    from transformers.utils import logging as transformers_logging

    shown, made = transformers_logging.is_progress_bar_enabled(), tqdm.__init__
    transformers_logging.disable_progress_bar()
    tqdm.__init__ = functools.partialmethod(made, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = made
        if shown:
            transformers_logging.enable_progress_bar()


def read_text_of(gguf: Path) -> GgufText:
    """The tokenizer's part of a GGUF file. Raises what the reader raises."""
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields

    def value(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    types = value("tokenizer.ggml.token_type") or []
    return GgufText(
        tokens=value("tokenizer.ggml.tokens"),
        control=frozenset(index for index, kind in enumerate(types) if kind == _CONTROL),
        eos=value("tokenizer.ggml.eos_token_id"),
        chat_template=value("tokenizer.chat_template"),
        pre=value("tokenizer.ggml.pre") or "default",
    )


def check_text(folder: Path, text: GgufText) -> None:
    """Raises ModelDamaged if a converted folder would read, write or end text otherwise than the GGUF file says.

    An instruct model whose end-of-turn token was lost never stops; one without its template answers nonsense.
    """
    from paceline.runtime.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    wrong = None
    table = tokenizer.token_table()
    if table != [_spelled(token) for token in text.tokens]:
        wrong = f"it has {len(table)} tokens, or others, instead of the file's {len(text.tokens)}"
    elif text.eos is not None and text.eos not in tokenizer.eos_token_ids:
        wrong = f"{text.tokens[text.eos]!r} does not end a turn"
    elif text.eos is not None and text.eos not in _generation_ends(folder):
        wrong = f"generation_config.json does not end at {text.tokens[text.eos]!r}"
    elif tokenizer.has_chat_template != (text.chat_template is not None):
        wrong = "its chat template was lost"
    else:
        shown = next((index for index in sorted(text.control) if tokenizer.decode([index])), None)
        whole = None if shown is not None else _unread(tokenizer, text)
        if shown is not None:
            wrong = f"the control token {text.tokens[shown]!r} shows as text"
        elif whole is not None:
            wrong = f"the control token {text.tokens[whole]!r} is not read as one"
    if wrong is not None:
        raise ModelDamaged(f"converted tokenizer: {wrong}; another version of transformers may convert it right")


def _spelled(token: str) -> str:
    """A token of the file as SentencePiece spells it: files of Gemma write runs of spaces as they are."""
    return "▁" * len(token) if len(token) > 1 and not token.strip(" ") else token


def _unread(tokenizer: Any, text: GgufText) -> int | None:
    """The first control token whose name is not read as that one token."""
    return next((index for index in sorted(text.control) if index not in tokenizer.encode(text.tokens[index])), None)


def _generation_ends(folder: Path) -> list[Any]:
    path = folder / "generation_config.json"
    named: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    return named if isinstance(named, list) else [named]


def _restore_splitting(tokenizer: Any, pre: str) -> None:
    """SmolLM takes digits one by one before anything else, which the loader of transformers does not know of.

    Without it, "\\n\\n1." splits after each newline instead of after both, as the model never saw in training.
    """
    if pre == "smollm":
        from tokenizers import pre_tokenizers

        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
