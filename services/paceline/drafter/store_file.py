"""The file a text store is loaded from and saved to.

A compressed npz archive of numpy, without pickled objects:

    format     string     "paceline-texts"
    version    int        1
    tokenizer  string     fingerprint of the tokenizer whose ids these are (paceline.runtime.fingerprint)
    model      string     a model with that tokenizer, for people
    lengths    int32 [n]  tokens of each text, at least 1; the oldest text first
    tokens     int32 [sum of lengths]
"""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.drafter.text_store import Texts
from paceline.errors import InvalidField, TokenizerMismatch

FORMAT, VERSION = "paceline-texts", 1
_ALLOWED = f"a store file of version {VERSION}"
_REMEDY = "Name another file, or remove this one to begin anew."


class Tokenizer(NamedTuple):
    """Whose ids a store holds."""

    model: str  # a model that has it
    fingerprint: str
    vocab_size: int


def read_store(path: Path, tokenizer: Tokenizer, field: str = "store_file") -> Texts:
    """The texts of a file; `field` names it in errors.

    Raises InvalidField naming the fault of a file that cannot be read, is damaged or is no store file, and
    TokenizerMismatch naming both models.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise _damaged(field, path, "it is of another kind")
        with archive:
            _check_kind(field, path, archive)
            theirs, model = str(archive["tokenizer"]), str(archive["model"])
            if theirs != tokenizer.fingerprint:
                raise TokenizerMismatch(
                    f"{field} {path} holds ids of the tokenizer of {model} ({theirs[:12]}), the target is"
                    f" {tokenizer.model} ({tokenizer.fingerprint[:12]}). {_REMEDY}"
                )
            texts = Texts(archive["tokens"], archive["lengths"])
    except OSError as error:
        raise InvalidField(field, str(path), _ALLOWED, f"{error.strerror or error}. {_REMEDY}") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _damaged(field, path, " ".join(str(error).split())) from error
    fault = _fault(texts, tokenizer.vocab_size)
    if fault:
        raise _damaged(field, path, fault)
    return texts


def write_store(path: Path, texts: Texts, tokenizer: Tokenizer) -> None:
    """Replaces the file in one step, readable by its owner only. Raises OSError; the old file is then as it was."""
    path = path.resolve()  # a link stays one
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(
                file,
                format=np.array(FORMAT),
                version=np.array(VERSION),
                tokenizer=np.array(tokenizer.fingerprint),
                model=np.array(tokenizer.model),
                tokens=texts.tokens.astype("<i4"),
                lengths=texts.lengths.astype("<i4"),
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _check_kind(field: str, path: Path, archive: np.lib.npyio.NpzFile) -> None:
    if "format" not in archive or str(archive["format"]) != FORMAT:
        raise _damaged(field, path, "it is of another kind")
    if int(archive["version"]) != VERSION:
        raise _damaged(field, path, f"it has version {int(archive['version'])}")


def _damaged(field: str, path: Path, reason: str) -> InvalidField:
    return InvalidField(field, str(path), _ALLOWED, f"It cannot be used: {reason}. {_REMEDY}")


def _fault(texts: Texts, vocab_size: int) -> str:
    """What is wrong with texts; empty if nothing is."""
    for name, array in texts._asdict().items():
        if array.dtype != np.int32 or array.ndim != 1:
            return f"{name} is {array.dtype} with {array.ndim} dimensions, not int32 with one"
    tokens, lengths = texts
    if len(lengths) and lengths.min() < 1:
        return f"a length of {lengths.min()}"
    if lengths.sum(dtype=np.int64) != len(tokens):
        return f"lengths of {lengths.sum(dtype=np.int64)} tokens, but {len(tokens)} tokens"
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        wrong = tokens.min() if tokens.min() < 0 else tokens.max()
        return f"token {wrong}, the tokenizer has {vocab_size}"
    return ""
