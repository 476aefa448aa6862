"""Prompt files: JSON lines with `prompt` and optional `id` and `category`."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InvalidField
from paceline.runtime.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a file."""

    id: str
    category: str
    text: str


def load_prompts(path: Path, per_category: int | None = None, *, option: str = "--prompts") -> list[Prompt]:
    """Reads a file, keeping the first `per_category` of each category (None keeps all), in the file's order.

    Raises InvalidField naming `option` for a file that is not there or holds no prompt, or the line that is not a JSON
    object with a text `prompt`.
    """
    if not path.is_file():
        raise InvalidField(option, str(path), "a file of JSON lines")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(option, str(path), f"a file of JSON lines in UTF-8 that can be read ({error})") from error
    taken: dict[str, int] = defaultdict(int)
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidField(f"{path.name} line {number}", line, f"a JSON object ({error.msg})") from error
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"]:
            raise InvalidField(f"{path.name} line {number}", record, 'an object with a text field "prompt"')
        category = str(record.get("category", "all"))
        taken[category] += 1
        if per_category is None or taken[category] <= per_category:
            prompts.append(Prompt(str(record.get("id", number)), category, record["prompt"]))
    if not prompts:
        raise InvalidField(option, str(path), "at least one prompt")
    return prompts


def chat_tokens(tokenizer: TextTokenizer, text: str, limit: int) -> list[int]:
    """Token ids of `text` as one user turn, the text cut at its end until the whole fits `limit` tokens."""
    ids = tokenizer.apply_chat([("user", text)])
    if len(ids) <= limit:
        return ids
    content = tokenizer.encode(text)
    keep = len(content) - (len(ids) - limit)
    while len(ids) > limit and keep > 0:
        ids = tokenizer.apply_chat([("user", tokenizer.decode(content[:keep]))])
        keep -= max(1, len(ids) - limit)
    return ids


def prompt_tokens(tokenizer: TextTokenizer, text: str, limit: int) -> list[int]:
    """Token ids of `text` as a model takes it: one user turn, or plain text where there is no chat template."""
    if tokenizer.has_chat_template:
        return chat_tokens(tokenizer, text, limit)
    return tokenizer.encode(text)[:limit]
