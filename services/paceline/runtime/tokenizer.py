"""Text to token ids and back: what the services need of a tokenizer, and the tokenizers of model folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound, ModelUnsupported
from paceline.runtime.fingerprint import fingerprint_of, first_difference

__all__ = [
    "HuggingFaceTokenizer",
    "LoadTokenizer",
    "TextTokenizer",
    "fingerprint_of",
    "first_difference",
    "load_tokenizer",
]


class TextTokenizer(Protocol):
    """What the services need of a tokenizer. Methods may be called from any thread.

    One that decodes single-byte tokens as SentencePiece does also has `byte_tokens` (see HuggingFaceTokenizer).
    """

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
        """Ids with a role, such as bos, by the role's name."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as a prompt, with what the tokenizer puts around one. Raises InvalidField (lone surrogate)."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""
        ...

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a conversation of (role, content), ready for the assistant's turn. Raises InvalidField."""
        ...


LoadTokenizer = Callable[[Path], TextTokenizer]  # of a model folder; raises what `load_tokenizer` does


class HuggingFaceTokenizer:
    """A fast tokenizer of a model folder.

    Only the backend's own `encode` and `decode` run per request: they change no state. The wrapper of transformers sets
    truncation and padding on the shared object with every call, which fails while another thread is encoding.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: frozenset[int]) -> None:
        """`tokenizer` is transformers' wrapper, with a fast backend; no one else may use it any more."""
        self._wrapper = tokenizer
        self._backend = tokenizer.backend_tokenizer
        # A folder may ask for either; a prompt is never cut in silence.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token_ids = eos_token_ids
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self._table = [""] * (max(vocabulary.values(), default=-1) + 1)
        for token, index in vocabulary.items():
            self._table[index] = token
        special = {index for index, token in self._backend.get_added_tokens_decoder().items() if token.special}
        self._hidden = eos_token_ids - special  # the backend leaves the special ones out by itself
        self.byte_tokens: Mapping[int, int] = _byte_tokens(self._backend, self._table)

    @property
    def vocab_size(self) -> int:
        """Highest id with a token, plus one."""
        return len(self._table)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a chat template."""
        return bool(self._wrapper.chat_template)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the id to token table and the special ids, hexadecimal."""
        return fingerprint_of(self._table, self.special_ids())

    def token_table(self) -> list[str]:
        """The token of each id."""
        return list(self._table)

    def special_ids(self) -> dict[str, int]:
        """Ids of the roles that matter to a causal model; padding does not, and is often set to any of the others."""
        wrapper = self._wrapper
        roles = {"bos": wrapper.bos_token_id, "eos": wrapper.eos_token_id, "unk": wrapper.unk_token_id}
        return {role: int(index) for role, index in roles.items() if index is not None}

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as a prompt: with the beginning-of-sequence token if the model wants one there.

        The names of special tokens in the text become those tokens. Raises InvalidField for a lone surrogate.
        """
        _refuse_surrogates(text, "text")
        return list(self._backend.encode(text, add_special_tokens=True).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens and those that end a turn are left out."""
        shown = [index for index in ids if index not in self._hidden] if self._hidden else list(ids)
        return str(self._backend.decode(shown, skip_special_tokens=True))

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn.

        Raises InvalidField for a model without a chat template, an empty list, a lone surrogate, and for what the
        template itself refuses, with its words.
        """
        if not self.has_chat_template:
            raise InvalidField("chat", "a conversation", "text or tokens", "The model has no chat template.")
        if not messages:
            raise InvalidField("chat.messages", [], "at least one message")
        turns = [{"role": role, "content": content} for role, content in messages]
        for index, turn in enumerate(turns):
            for field, value in turn.items():
                _refuse_surrogates(value, f"chat.messages[{index}].{field}")
        try:
            text = self._wrapper.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise whatever their author chose
            roles = [role for role, _ in messages]
            raise InvalidField("chat.messages", roles, f"what the model's chat template takes ({error})") from error
        # The template has written the tokens around the turns itself.
        return list(self._backend.encode(text, add_special_tokens=False).ids)


def load_tokenizer(folder: Path | str) -> HuggingFaceTokenizer:
    """The tokenizer of a model folder, with the model's whole set of end tokens.

    Raises ModelNotFound if there is none, ModelUnsupported if it has no fast form or needs code of its own,
    ModelDamaged if it cannot be read.
    """
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json", "tokenizer.model")):
        raise ModelNotFound(f"{folder} holds no tokenizer (tokenizer.json, tokenizer_config.json or tokenizer.model)")
    try:
        wrapper = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the loader raises many types for a damaged file
        if "trust_remote_code" in str(error):
            raise ModelUnsupported(f"{folder}: its tokenizer is code of its own, which is not run") from error
        raise ModelDamaged(
            f"the tokenizer in {folder} cannot be read: {_line(error)}; fetch the model again"
        ) from error
    if not getattr(wrapper, "is_fast", False):
        raise ModelUnsupported(f"{folder}: its tokenizer has no fast form (tokenizer.json), which serving needs")
    ends = set() if wrapper.eos_token_id is None else {int(wrapper.eos_token_id)}
    for name in ("generation_config.json", "config.json"):
        ends |= _eos_ids(folder / name)
    tokenizer = HuggingFaceTokenizer(wrapper, frozenset(ends))
    if not tokenizer.vocab_size:
        raise ModelDamaged(f"the tokenizer in {folder} has no tokens; fetch the model again")
    return tokenizer


def _byte_tokens(backend: Any, table: Sequence[str]) -> dict[int, int]:
    """Id to byte of the tokens that the decoder puts together by the row; none for byte-level tokenizers."""
    if backend.decoder is None or '"ByteFallback"' not in backend.decoder.__getstate__().decode():
        return {}
    found = {}
    for index, token in enumerate(table):
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                found[index] = int(token[3:5], 16)
            except ValueError:
                continue
    return found


def _eos_ids(path: Path) -> set[int]:
    """The end tokens that a configuration file names: one, a list, or none."""
    if not path.is_file():
        return set()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        named = content.get("eos_token_id")
        ids = [] if named is None else named if isinstance(named, list) else [named]
        if not all(isinstance(index, int) and index >= 0 for index in ids):
            raise ValueError(f"eos_token_id is {named!r}, not an id or a list of ids")
    except (ValueError, AttributeError, OSError) as error:
        raise ModelDamaged(f"{path} cannot be read: {_line(error)}; fetch the model again") from error
    return set(ids)


def _refuse_surrogates(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        got = f"the lone surrogate {text[error.start]!r} at character {error.start}"
        raise InvalidField(field, got, "valid Unicode", "Remove it.") from error


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
