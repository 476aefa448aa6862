"""Text to token ids and back, and the fingerprint by which drafter and target know that they share a tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound


class TextTokenizer(Protocol):
    """What the services need of a tokenizer. Methods may be called from any thread."""

    @property
    def vocab_size(self) -> int:
        """Ids below it can be emitted; a model may have more, for padding."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a turn."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat` can be used."""
        ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the id to token table and the special ids, hexadecimal."""
        ...

    def token_table(self) -> list[str]:
        """The token of each id; empty for an id without one."""
        ...

    def special_ids(self) -> dict[str, int]:
        """Ids with a role, such as eos, by the role's name."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as it is, without special tokens around it. Raises InvalidField for a lone surrogate."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        ...

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a conversation of (role, content), ready for the assistant's turn. Raises InvalidField."""
        ...


class HuggingFaceTokenizer:
    """A fast tokenizer of a model folder.

    Only the backend's own `encode` and `decode` run per request: they take no lock and change no state, whereas the
    wrapper of transformers sets truncation and padding on the shared object with every call.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: frozenset[int]) -> None:
        """`tokenizer` is transformers' wrapper; its backend must be a fast one."""
        self._wrapper = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token_ids = eos_token_ids

    @cached_property
    def vocab_size(self) -> int:
        """Highest id with a token, plus one."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a chat template."""
        return bool(self._wrapper.chat_template)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the id to token table and the special ids, hexadecimal."""
        return fingerprint_of(self.token_table(), self.special_ids())

    def token_table(self) -> list[str]:
        """The token of each id."""
        table = [""] * self.vocab_size
        for token, index in self._backend.get_vocab(with_added_tokens=True).items():
            table[index] = token
        return table

    def special_ids(self) -> dict[str, int]:
        """Ids with a role. The end tokens are the model's affair and not part of it."""
        roles = {"bos": self._wrapper.bos_token_id, "unk": self._wrapper.unk_token_id}
        return {role: int(index) for role, index in roles.items() if index is not None}

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as it is."""
        _refuse_surrogates(text)
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn."""
        if not self.has_chat_template:
            raise InvalidField("chat", "messages", "text or tokens", "this model has no chat template")
        turns = [{"role": role, "content": content} for role, content in messages]
        for index, (_, content) in enumerate(messages):
            _refuse_surrogates(content, f"chat.messages[{index}].content")
        try:
            text = self._wrapper.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise whatever their author chose
            raise InvalidField("chat.messages", "a conversation", f"what the chat template takes: {error}") from error
        return self.encode(text)


def load_tokenizer(folder: Path | str) -> HuggingFaceTokenizer:
    """The tokenizer of a model folder, with the model's whole set of end tokens.

    Raises ModelNotFound if there is none, ModelDamaged if it cannot be read.
    """
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not (folder / "tokenizer_config.json").is_file() and not (folder / "tokenizer.json").is_file():
        raise ModelNotFound(f"{folder} holds no tokenizer (tokenizer.json or tokenizer_config.json)")
    try:
        wrapper = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the loader raises many types for a damaged file
        raise ModelDamaged(f"the tokenizer in {folder} cannot be read: {error}; fetch the model again") from error
    if not getattr(wrapper, "is_fast", False):
        raise ModelDamaged(f"the tokenizer in {folder} has no fast form (tokenizer.json), which serving needs")
    ends = set() if wrapper.eos_token_id is None else {int(wrapper.eos_token_id)}
    for name in ("generation_config.json", "config.json"):
        ends |= _eos_ids(folder / name)
    return HuggingFaceTokenizer(wrapper, frozenset(ends))


def fingerprint_of(table: Sequence[str], special: dict[str, int]) -> str:
    """SHA-256 over an id to token table and special ids, hexadecimal."""
    content = json.dumps([list(table), sorted(special.items())], ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()


def first_difference(first: TextTokenizer, second: TextTokenizer) -> str | None:
    """The first id, or special id, in which two tokenizers differ, in words; None if they are the same."""
    if first.fingerprint == second.fingerprint:
        return None
    ours, theirs = first.token_table(), second.token_table()
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"id {index} is {one!r} in one and {other!r} in the other"
    if len(ours) != len(theirs):
        longer = ours if len(ours) > len(theirs) else theirs
        index = min(len(ours), len(theirs))
        return f"one has {len(ours)} tokens, the other {len(theirs)}; id {index} ({longer[index]!r}) is in one only"
    here, there = first.special_ids(), second.special_ids()
    role = next(role for role in sorted(here.keys() | there.keys()) if here.get(role) != there.get(role))
    return f"the {role} id is {here.get(role)} in one and {there.get(role)} in the other"


def _eos_ids(path: Path) -> set[int]:
    if not path.is_file():
        return set()
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (json.JSONDecodeError, AttributeError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"{path} cannot be read: {error}; fetch the model again") from error
    if named is None:
        return set()
    return {named} if isinstance(named, int) else set(named)


def _refuse_surrogates(text: str, field: str = "text") -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidField(
            field, f"a lone surrogate at character {error.start}", "valid Unicode", "remove it"
        ) from error
