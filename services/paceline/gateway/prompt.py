"""The prompt of a request: its limits, and its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.gateway.config import GatewayConfig
from paceline.v1 import inference_pb2

if TYPE_CHECKING:
    from paceline.runtime.tokenizer import TextTokenizer

ROLES = ("system", "user", "assistant")


def check_prompt(request: inference_pb2.GenerateRequest, max_bytes: int) -> None:
    """What can be said without a model. Raises InvalidField for an absent, empty, malformed or oversized prompt."""
    kind = request.WhichOneof("input")
    if kind == "text":
        _check_size("text", request.text, max_bytes)
    elif kind == "chat":
        _check_chat(request.chat, max_bytes)
    elif kind == "tokens":
        if not request.tokens.token_ids:
            raise InvalidField("tokens.token_ids", [], "at least one token id")
    else:
        raise InvalidField("input", None, "exactly one of text, chat, tokens")


def _check_size(field: str, text: str, max_bytes: int) -> None:
    size = len(text.encode())
    if not 1 <= size <= max_bytes:
        got = text if size == 0 else f"{size} bytes"
        raise InvalidField(field, got, f"1 to {max_bytes} bytes (max_prompt_bytes)", "Shorten it." if size else "")


def _check_chat(chat: inference_pb2.ChatInput, max_bytes: int) -> None:
    if not chat.messages:
        raise InvalidField("chat.messages", [], "at least one message")
    size = 0
    for index, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidField(f"chat.messages[{index}].role", message.role, ", ".join(ROLES))
        if not message.content:
            raise InvalidField(f"chat.messages[{index}].content", message.content, "at least one character")
        size += len(message.content.encode())
    if size > max_bytes:
        allowed = f"1 to {max_bytes} bytes in all (max_prompt_bytes)"
        raise InvalidField("chat.messages", f"{size} bytes", allowed, "Shorten the conversation.")
    if chat.messages[-1].role == "assistant":
        raise InvalidField(f"chat.messages[{len(chat.messages) - 1}].role", "assistant", "user or system as the last")


class PromptReader:
    """Turns checked prompts into tokens. Long text is tokenised in threads of its own."""

    def __init__(self, tokenizer: TextTokenizer, config: GatewayConfig) -> None:
        self._tokenizer, self._inline_bytes = tokenizer, config.inline_prompt_bytes
        self._threads = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="paceline-tokenizer")

    def close(self) -> None:
        """Ends the threads; text that is being tokenised is left to end by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def tokens(
        self,
        request: inference_pb2.GenerateRequest,
        vocab_size: int,
        context_length: int,
        limit_s: float | None,
    ) -> NDArray[np.int32]:
        """[prompt] int32 tokens.

        Raises InvalidField for ids out of range, for text that gives no token, and for a prompt that leaves no room for
        a reply; TimeoutError after `limit_s` seconds.
        """
        kind = request.WhichOneof("input")
        if kind == "tokens":
            ids = np.array(request.tokens.token_ids, dtype=np.int32)
            _check_ids(ids, vocab_size)
        elif kind == "chat":
            messages = [(message.role, message.content) for message in request.chat.messages]
            if not self._tokenizer.has_chat_template:
                remedy = "The model has no chat template; send the prompt as text (paceline generate --raw)."
                raise InvalidField("chat", "a conversation", "text or tokens", remedy)
            # Every message takes a token at least, so that a template never runs over far too many.
            _check_room("chat.messages", len(messages), context_length, "messages")
            size = sum(len(content) for _, content in messages)
            ids = await self._encode(lambda: self._tokenizer.apply_chat(messages), size, limit_s)
        else:
            text = request.text
            ids = await self._encode(lambda: self._tokenizer.encode(text), len(text), limit_s)
        field = {"tokens": "tokens.token_ids", "chat": "chat.messages"}.get(str(kind), "text")
        if len(ids) == 0:
            raise InvalidField(field, "no tokens", "text of at least one token")
        _check_room(field, len(ids), context_length, "tokens")
        return ids

    async def _encode(self, encode: Callable[[], Sequence[int]], size: int, limit_s: float | None) -> NDArray[np.int32]:
        if size <= self._inline_bytes:
            return np.array(encode(), dtype=np.int32)
        work = asyncio.get_running_loop().run_in_executor(self._threads, encode)
        return np.array(await asyncio.wait_for(work, limit_s), dtype=np.int32)


def _check_ids(ids: NDArray[np.int32], vocab_size: int) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(wrong):
        index = int(wrong[0])
        raise InvalidField(f"tokens.token_ids[{index}]", int(ids[index]), f"0 to {vocab_size - 1}")


def _check_room(field: str, count: int, context_length: int, unit: str) -> None:
    if count >= context_length:
        allowed = f"at most {context_length - 1} tokens (context_length {context_length}, one of them for the reply)"
        raise InvalidField(field, f"{count} {unit}", allowed, "Shorten the prompt.")
