"""Small tokenizers with the manners of the real kinds."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.runtime.tokenizer import fingerprint_of


class ByteTokenizer:
    """Token i is byte i, as in byte-level tokenizers: a character may take several tokens. 256 ends a reply."""

    vocab_size = 257
    eos_token_ids = frozenset({256})
    has_chat_template = True

    def __init__(self) -> None:
        self.fingerprint = fingerprint_of(self.token_table(), {})

    def token_table(self) -> list[str]:
        return [f"byte {index}" for index in range(256)] + ["<end>"]

    def special_ids(self) -> dict[str, int]:
        return {}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(index for index in ids if index < 256).decode(errors="replace")

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return self.encode("".join(f"[{role}]{content}" for role, content in messages))


class PieceTokenizer:
    """As SentencePiece does it: pieces carry a leading space, bytes stand in for what has no piece."""

    has_chat_template = False
    eos_token_ids = frozenset[int]()

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = list(pieces)
        self.vocab_size = 256 + len(pieces)
        self.fingerprint = fingerprint_of(self.token_table(), {})

    def token_table(self) -> list[str]:
        return [f"<0x{index:02X}>" for index in range(256)] + self._pieces

    def special_ids(self) -> dict[str, int]:
        return {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        rest = "▁" + text.replace(" ", "▁")
        while rest:
            piece = max((piece for piece in self._pieces if rest.startswith(piece)), key=len, default="")
            ids += [256 + self._pieces.index(piece)] if piece else list(rest[0].encode())
            rest = rest[len(piece) or 1 :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        data = b"".join(bytes([index]) if index < 256 else self._pieces[index - 256].encode() for index in ids)
        text = data.decode(errors="replace").replace("▁", " ")
        return text.removeprefix(" ")  # the first piece's space is no part of the text

    def apply_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        raise AssertionError("there is no template")
