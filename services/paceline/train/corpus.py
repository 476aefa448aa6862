"""A corpus on the disk: tokens, and the teacher's most probable next tokens at every token of a reply.

A folder with `corpus.json` and one folder a shard, each array a file of numpy's that can be memory-mapped:

    corpus.json                     what it is (see `CorpusInfo`) and `shards`, in order
    000000/tokens.npy          int32   [t]     sequences one after another, each a prompt and its reply
    000000/starts.npy          int64   [n + 1] where each sequence begins, and the end of the last one
    000000/prompt_lengths.npy  int32   [n]     tokens of each prompt, at least 1; the rest is the reply
    000000/temperatures.npy    float32 [n]     at which each reply was drawn; 0 is greedy
    000000/row_ids.npy         int32   [r, K]  the K most probable tokens, best first, for each reply token in order
    000000/row_log_probs.npy   float16 [r, K]  log of their probabilities at temperature 1, nats

Row j of a sequence is the distribution that token j of its reply comes from. What a row leaves out, one less the sum
of its probabilities, is the tail. A shard is written beside its place and moved there whole; the list in `corpus.json`
says which ones count.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidField, PacelineError

FORMAT, VERSION = "paceline-corpus", 1
_ARRAYS = {
    "tokens": (np.int32, 1),
    "starts": (np.int64, 1),
    "prompt_lengths": (np.int32, 1),
    "temperatures": (np.float32, 1),
    "row_ids": (np.int32, 2),
    "row_log_probs": (np.float16, 2),
}


class CorpusDamaged(PacelineError):
    """A corpus cannot be read; the text names the file and the reason."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard and what it holds."""

    name: str
    sequences: int
    tokens: int
    reply_tokens: int


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """What a corpus is."""

    target: str  # the model that wrote it
    tokenizer_fingerprint: str
    vocab_size: int
    rows: int  # tokens of a row, K
    settings: dict[str, Any]  # how it was made; a run that goes on has the same
    shards: tuple[Shard, ...] = ()

    @property
    def sequences(self) -> int:
        """Sequences of all shards."""
        return sum(shard.sequences for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens of all shards, prompts included."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def reply_tokens(self) -> int:
        """Tokens that have a row."""
        return sum(shard.reply_tokens for shard in self.shards)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """One sequence."""

    tokens: NDArray[np.int32]  # [t] prompt, then reply
    prompt_length: int
    temperature: float
    row_ids: NDArray[np.int32]  # [t - prompt_length, K]
    row_log_probs: NDArray[np.float16]  # [t - prompt_length, K]


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    temperatures: NDArray[np.float32]
    row_ids: NDArray[np.int32]
    row_log_probs: NDArray[np.float16]
    row_starts: NDArray[np.int64] = field(init=False)  # [n + 1]

    def __post_init__(self) -> None:
        replies = np.diff(self.starts) - self.prompt_lengths
        object.__setattr__(self, "row_starts", np.concatenate(([0], np.cumsum(replies))))


class Corpus(Sequence[Written]):
    """The sequences of a corpus, memory-mapped."""

    def __init__(self, info: CorpusInfo, shards: Sequence[_Mapped]) -> None:
        """Use `open`."""
        self.info = info
        self._shards = list(shards)
        self._firsts = np.cumsum([0] + [len(shard.prompt_lengths) for shard in shards])

    @classmethod
    def open(cls, *folders: Path) -> Corpus:
        """One or several, behind each other. What they have in common is the first one's.

        Raises CorpusDamaged naming the file and the reason, or InvalidField if they are not of one target, or one is
        there twice.
        """
        for number, folder in enumerate(folders):
            if folder.resolve() in [other.resolve() for other in folders[:number]]:
                remedy = "What is learned from would be held out, too."
                raise InvalidField("--corpus", str(folder), "each folder once", remedy)
        infos = [read_info(folder) for folder in folders]
        for folder, info in zip(folders, infos, strict=True):
            for name in ("target", "tokenizer_fingerprint", "vocab_size", "rows"):
                first = getattr(infos[0], name)
                if getattr(info, name) != first:
                    allowed = f"corpora with the {name} {first!r}, as {folders[0]} has"
                    raise InvalidField("--corpus", f"{folder} with {getattr(info, name)!r}", allowed)
        shards = [
            _map_shard(folder, shard, info)
            for folder, info in zip(folders, infos, strict=True)
            for shard in info.shards
        ]
        return cls(replace(infos[0], shards=tuple(shard for info in infos for shard in info.shards)), shards)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, index: int) -> Written:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._firsts, index, side="right")) - 1
        shard, at = self._shards[number], index - int(self._firsts[number])
        start, end = int(shard.starts[at]), int(shard.starts[at + 1])
        first, last = int(shard.row_starts[at]), int(shard.row_starts[at + 1])
        return Written(
            shard.tokens[start:end],
            int(shard.prompt_lengths[at]),
            float(shard.temperatures[at]),
            shard.row_ids[first:last],
            shard.row_log_probs[first:last],
        )


def read_info(folder: Path) -> CorpusInfo:
    """What the corpus in `folder` is. Raises CorpusDamaged."""
    path = folder / "corpus.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusDamaged(f"{path} cannot be read: {error}; make the corpus with paceline train corpus") from error
    if not isinstance(held, dict) or (held.pop("format", None), held.pop("version", None)) != (FORMAT, VERSION):
        raise CorpusDamaged(f"{path} is not of a corpus of version {VERSION}; make the corpus anew")
    try:
        shards = tuple(Shard(**shard) for shard in held.pop("shards"))
        return CorpusInfo(**held, shards=shards)
    except (KeyError, TypeError) as error:
        raise CorpusDamaged(f"{path} is incomplete ({error}); make the corpus anew") from error


def write_info(folder: Path, info: CorpusInfo) -> None:
    """Replaces `corpus.json` in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / "corpus.json.tmp"
    scratch.write_text(json.dumps({"format": FORMAT, "version": VERSION, **asdict(info)}, indent=1), encoding="utf-8")
    os.replace(scratch, folder / "corpus.json")


def write_shard(folder: Path, name: str, sequences: Sequence[Written]) -> Shard:
    """Writes a shard; a folder of that name that no list counts is replaced."""
    arrays: dict[str, Any] = {
        "tokens": np.concatenate([each.tokens for each in sequences]),
        "starts": np.cumsum([0] + [len(each.tokens) for each in sequences]),
        "prompt_lengths": [each.prompt_length for each in sequences],
        "temperatures": [each.temperature for each in sequences],
        "row_ids": np.concatenate([each.row_ids for each in sequences]),
        "row_log_probs": np.concatenate([each.row_log_probs for each in sequences]),
    }
    scratch = folder / f"{name}.tmp"
    for place in (scratch, folder / name):
        shutil.rmtree(place, ignore_errors=True)
    scratch.mkdir(parents=True)
    for array, (dtype, _) in _ARRAYS.items():
        np.save(scratch / f"{array}.npy", np.ascontiguousarray(arrays[array], dtype=dtype))
    os.replace(scratch, folder / name)
    return Shard(name, len(sequences), len(arrays["tokens"]), len(arrays["row_ids"]))


def _map_shard(folder: Path, shard: Shard, info: CorpusInfo) -> _Mapped:
    arrays: dict[str, NDArray[Any]] = {}
    for array, (dtype, dimensions) in _ARRAYS.items():
        path = folder / shard.name / f"{array}.npy"
        try:
            held = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CorpusDamaged(f"{path} cannot be read: {error}; remove its shard from corpus.json") from error
        if held.dtype != dtype or held.ndim != dimensions:
            raise CorpusDamaged(f"{path} is {held.dtype} with {held.ndim} dimensions, not {np.dtype(dtype)}")
        arrays[array] = held
    found = _Mapped(**arrays)
    fault = _fault(found, shard, info)
    if fault:
        raise CorpusDamaged(f"{folder / shard.name}: {fault}; remove it from corpus.json and make it anew")
    return found


def _fault(found: _Mapped, shard: Shard, info: CorpusInfo) -> str:
    """What is wrong with a shard; empty if nothing is. Reads the small arrays and the tokens."""
    if (len(found.starts), len(found.tokens)) != (shard.sequences + 1, shard.tokens):
        return f"{len(found.starts) - 1} sequences of {len(found.tokens)} tokens, not {shard.sequences}, {shard.tokens}"
    if len(found.prompt_lengths) != shard.sequences or len(found.temperatures) != shard.sequences:
        return "prompt_lengths or temperatures are not of every sequence"
    if found.starts[0] != 0 or found.starts[-1] != shard.tokens or (np.diff(found.starts) < 1).any():
        return "starts do not ascend to the number of tokens"
    if (found.prompt_lengths < 1).any() or (np.diff(found.row_starts) < 0).any():
        return "a prompt is empty or longer than its sequence"
    shape = (int(found.row_starts[-1]), info.rows)
    if found.row_ids.shape != shape or found.row_log_probs.shape != shape:
        return f"rows of shape {found.row_ids.shape} and {found.row_log_probs.shape}, not {shape}"
    if len(found.tokens) and not 0 <= found.tokens.min() <= found.tokens.max() < info.vocab_size:
        return f"tokens outside 0 to {info.vocab_size - 1}"
    return ""
