"""Decoding by llama.cpp, plain and by prompt lookup, from the GGUF file that our weights come from.

Through xllamacpp, which brings llama.cpp's own server with wheels that need no compiler. The server is asked by token
ids over loopback HTTP; its times are those it measures itself, from a reply's first token to its last, without HTTP.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, Unavailable
from paceline.runtime.store import default_store
from paceline.study.peers import Decoded, System

LLAMA, LLAMA_LOOKUP = "llama.cpp plain", "llama.cpp prompt lookup"
MODULE = "xllamacpp"
SILENT = -1  # verbosity
LOOKUP_KEY, LOOKUP_TOKENS = 2, 10  # tokens that must have come before, candidates a round: those of transformers
ANSWER_S = 600.0  # far beyond any reply


@dataclass(frozen=True, slots=True)
class LlamaPeer:
    """What llama.cpp gives, or why it gives nothing."""

    systems: list[System]
    skipped: list[str]


@contextmanager
def llama_peer(
    model: str, threads: int, context: int, new_tokens: int, progress: Callable[[str], None]
) -> Iterator[LlamaPeer]:
    """The systems, until the block ends.

    Args:
        model: a known model's name; others have no GGUF file here.
        threads: of each system.
        context: most tokens of prompt and reply.
        new_tokens: most tokens of a reply.
        progress: told what is done.
    """
    if importlib.util.find_spec(MODULE) is None:
        yield LlamaPeer([], ["llama.cpp is skipped: it comes with the extra [peers], pip install 'paceline[peers]'"])
        return
    progress("fetching the GGUF file for llama.cpp")
    try:
        gguf = default_store().gguf(model, progress)
    except PacelineError as error:
        yield LlamaPeer([], [f"llama.cpp is skipped: {error}"])
        return
    progress("loading llama.cpp")
    servers = {
        LLAMA: _server(gguf, threads, context, lookup=False),
        LLAMA_LOOKUP: _server(gguf, threads, context, lookup=True),
    }
    dtype = _format(gguf)
    try:
        yield LlamaPeer(
            [_system(name, dtype, server.listening_address, new_tokens) for name, server in servers.items()], []
        )
    finally:
        servers.clear()
        gc.collect()  # a server ends when nothing refers to it


def _format(gguf: Path) -> str:
    """The format of most of its weights, as GGUF calls it."""
    from gguf import GGUFReader, LlamaFileType

    field = GGUFReader(gguf).fields.get("general.file_type")
    return "GGUF" if field is None else LlamaFileType(field.contents()).name.removeprefix("MOSTLY_")


def _server(gguf: Path, threads: int, context: int, *, lookup: bool) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.n_ctx, params.n_parallel = context, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.verbosity = SILENT
    if lookup:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = LOOKUP_KEY
        params.speculative.ngram_simple.size_m = LOOKUP_TOKENS
    return xllamacpp.Server(params)


def _system(name: str, dtype: str, address: str, new_tokens: int) -> System:
    async def decode(prompt: Sequence[int]) -> Decoded:
        return await asyncio.to_thread(_completed, address, prompt, new_tokens)

    return System(name, dtype, decode)


def _completed(address: str, prompt: Sequence[int], new_tokens: int) -> Decoded:
    """A greedy reply, without its end token. Raises Unavailable with the server's words."""
    asked = {
        "prompt": list(prompt),
        "n_predict": new_tokens,
        "temperature": 0.0,
        "samplers": ["top_k"],
        "top_k": 1,
        "return_tokens": True,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=ANSWER_S) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        raise Unavailable(f"llama.cpp: {error.read().decode(errors='replace')[:200]}") from error
    timings = found["timings"]
    return Decoded(tuple(found["tokens"]), timings["predicted_ms"] / 1e3, int(timings["predicted_n"]) - 1)
