"""`paceline train texts`: a corpus's replies as a file for the suffix proposer's store."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.drafter.store_file import Tokenizer, write_store
from paceline.drafter.text_store import Texts
from paceline.errors import InvalidField
from paceline.train.corpus import Corpus


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument(
        "--corpus", type=Path, nargs="+", required=True, help="folders that paceline train corpus has made"
    )
    parser.add_argument("--out", type=Path, required=True, help="the file, for store_file or a drafter's texts.npz")
    parser.add_argument("--tokens", type=int, default=200_000, metavar="N", help="most tokens (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line of stdout")


def run_texts(args: argparse.Namespace) -> int:
    """Writes the file."""
    if args.tokens < 1:
        raise InvalidField("--tokens", args.tokens, "at least 1")
    corpus = Corpus.open(*args.corpus)
    texts = replies(corpus, args.tokens)
    if not len(texts.lengths):
        raise InvalidField("--corpus", " ".join(map(str, args.corpus)), "one with a reply of at most --tokens tokens")
    info = corpus.info
    try:
        write_store(args.out, texts, Tokenizer(info.target, info.tokenizer_fingerprint, info.vocab_size))
    except OSError as error:
        raise InvalidField("--out", str(args.out), f"a file that can be written ({error.strerror or error})") from error
    summary = {"out": str(args.out), "replies": len(texts.lengths), "tokens": len(texts.tokens)}
    print(json.dumps(summary) if args.json else ", ".join(f"{key} {value}" for key, value in summary.items()))
    return 0


def replies(corpus: Corpus, most: int) -> Texts:
    """Whole replies of at most `most` tokens together, the coolest ones first taken and last in order.

    A store forgets its oldest texts first, and greedy replies say most of what comes again.
    """
    taken: list[NDArray[np.int32]] = []
    left = most
    for index in np.argsort([each.temperature for each in corpus], kind="stable").tolist():
        reply = corpus[index].tokens[corpus[index].prompt_length :]
        if 0 < len(reply) <= left:
            taken.append(reply)
            left -= len(reply)
    taken.reverse()
    empty = np.zeros(0, dtype=np.int32)
    return Texts(np.concatenate([empty, *taken]), np.asarray([len(each) for each in taken], dtype=np.int32))
