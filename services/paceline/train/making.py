"""A corpus is made: sequences are written, gathered into shards, and a run that was broken off goes on."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress

from paceline.errors import InvalidField
from paceline.train.corpus import CorpusInfo, Written, read_info, write_info, write_shard
from paceline.train.writing import Writer

SHARD = 128  # sequences of a shard


@dataclass(frozen=True, slots=True)
class Made:
    """A corpus and how fast this run wrote."""

    info: CorpusInfo
    tokens_per_s: float  # reply tokens of this run; 0 if nothing was left to do


def make_corpus(folder: Path, info: CorpusInfo, writer: Writer, sequences: int, progress: Progress) -> Made:
    """Writes shards until there are `sequences` sequences; a last one that was short is made anew.

    Raises InvalidField naming the setting in which a corpus that is there differs.
    """
    held = _held(folder, info)
    sizes = {first // SHARD: min(SHARD, sequences - first) for first in range(0, sequences, SHARD)}
    shards = {int(shard.name): shard for shard in held.shards}
    wanted = [shard for shard, size in sizes.items() if shard not in shards or shards[shard].sequences < size]
    missing = sum(sizes[shard] for shard in wanted)
    task = progress.add_task("writing", total=sequences, completed=sequences - missing, rate=0.0)
    began, replied = time.perf_counter(), 0

    def told(tokens: int) -> None:
        nonlocal replied
        replied += tokens
        progress.update(task, rate=replied / (time.perf_counter() - began))

    unfinished: dict[int, dict[int, Written]] = {}
    numbers = itertools.chain.from_iterable(range(shard * SHARD, shard * SHARD + sizes[shard]) for shard in wanted)
    for number, written in writer.write(numbers, told):
        shard = number // SHARD
        unfinished.setdefault(shard, {})[number] = written
        progress.advance(task)
        if len(unfinished[shard]) == sizes[shard]:
            done = unfinished.pop(shard)
            shards[shard] = write_shard(folder, f"{shard:06d}", [done[each] for each in sorted(done)])
            held = replace(held, shards=tuple(shards[each] for each in sorted(shards)))
            write_info(folder, held)
    return Made(held, replied / (time.perf_counter() - began) if wanted else 0.0)


def _held(folder: Path, info: CorpusInfo) -> CorpusInfo:
    """What is there already; the wanted corpus without shards if nothing is."""
    if not (folder / "corpus.json").exists():
        write_info(folder, info)
        return info
    held = read_info(folder)
    ours, theirs = _facts(info), _facts(held)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            allowed = f"{theirs.get(name)!r}, as the corpus in {folder} was made"
            raise InvalidField(name, ours.get(name), allowed, "Name another --out folder to begin a new one.")
    return held


def _facts(info: CorpusInfo) -> dict[str, object]:
    own = {"target": info.target, "tokenizer": info.tokenizer_fingerprint, "vocab_size": info.vocab_size}
    return {**own, **{name: value for name, value in info.settings.items() if name != "batch"}}
