"""A corpus's replies as a store file."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest

from paceline.drafter.store_file import Tokenizer, read_store
from paceline.errors import InvalidField
from paceline.train.corpus import CorpusInfo, Written, write_info, write_shard
from paceline.train.texts import add_texts, run_texts

REPLIES = {0.0: [[1, 2, 3], [4]], 1.0: [[5, 6], [7, 8, 9, 10]]}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    written = [
        Written(
            np.asarray([0, *reply], dtype=np.int32),
            1,
            temperature,
            np.zeros((len(reply), 1), dtype=np.int32),
            np.zeros((len(reply), 1), dtype=np.float16),
        )
        for temperature in (1.0, 0.0)
        for reply in REPLIES[temperature]
    ]
    folder = tmp_path / "corpus"
    shard = write_shard(folder, "000000", written)
    write_info(folder, CorpusInfo("tiny", "f", 20, 1, {}, (shard,)))
    return folder


def run(*given: str) -> int:
    parser = ArgumentParser()
    add_texts(parser)
    return run_texts(parser.parse_args(given))


def test_greedy_replies_are_the_youngest(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "texts.npz"
    assert run("--corpus", str(corpus), "--out", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "replies": 4, "tokens": 10}
    texts = read_store(out, Tokenizer("tiny", "f", 20))
    assert texts.lengths.tolist() == [4, 2, 1, 3]
    assert texts.tokens.tolist() == [7, 8, 9, 10, 5, 6, 4, 1, 2, 3]


def test_no_more_than_asked_for(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "texts.npz"
    run("--corpus", str(corpus), "--out", str(out), "--tokens", "6")
    assert read_store(out, Tokenizer("tiny", "f", 20)).tokens.tolist() == [5, 6, 4, 1, 2, 3]


def test_what_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="--tokens: got 0"):
        run("--corpus", str(corpus), "--out", str(tmp_path / "x"), "--tokens", "0")
    with pytest.raises(InvalidField, match=r"--out: got .*no/such"):
        run("--corpus", str(corpus), "--out", str(tmp_path / "no" / "such"))
