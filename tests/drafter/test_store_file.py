"""The file of a store: what it refuses, how it is replaced, when it is written."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.drafter.config import DrafterConfig
from paceline.drafter.keeper import StoreKeeper
from paceline.drafter.loading import load_proposer, load_store
from paceline.drafter.server import DrafterServer
from paceline.drafter.store_file import Tokenizer, read_store, write_store
from paceline.drafter.text_store import MB, Texts, TextStore
from paceline.errors import InvalidField, TokenizerMismatch
from paceline.runtime.tokenizer import load_tokenizer
from support.tiny import byte_level_tokenizer, save_tokenizer, tiny_model

OURS = Tokenizer("ours", "f" * 64, 100)
TEXTS = Texts(np.asarray([1, 2, 3, 4, 99], np.int32), np.asarray([3, 2], np.int32))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.npz"


def keeper(file: Path, store: TextStore, save_s: float = 60.0) -> StoreKeeper:
    return StoreKeeper(store, file, OURS, save_s)


def test_a_file_is_read_as_it_was_written_and_belongs_to_its_owner(file: Path) -> None:
    write_store(file, TEXTS, OURS)
    tokens, lengths = read_store(file, OURS)
    assert (tokens.tolist(), lengths.tolist()) == (TEXTS.tokens.tolist(), TEXTS.lengths.tolist())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]
    with np.load(file, allow_pickle=False) as archive:  # the format as it is documented
        assert {name: archive[name].dtype.str[:2] for name in archive} == {
            "format": "<U", "version": "<i", "tokenizer": "<U", "model": "<U", "tokens": "<i", "lengths": "<i",
        }  # fmt: skip
        assert (str(archive["format"]), int(archive["version"])) == ("paceline-texts", 1)


def test_an_empty_store_has_a_file_too(file: Path) -> None:
    write_store(file, TextStore(MB, keep_texts=True).texts(), OURS)
    assert len(read_store(file, OURS).tokens) == 0


def saved(**changes: Any) -> bytes:
    """A file with members changed, or left out with None."""
    members = {
        "format": "paceline-texts", "version": 1, "tokenizer": OURS.fingerprint, "model": "ours", **TEXTS._asdict(),
        **changes,
    }  # fmt: skip
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: np.asarray(each) for name, each in members.items() if each is not None})
    return buffer.getvalue()


def one_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, TEXTS.tokens)
    return buffer.getvalue()


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, format=np.asarray([{"a": 1}], dtype=object))
    return buffer.getvalue()


def flipped() -> bytes:
    """One byte of the tokens is another; the archive's checksum finds it."""
    buffer = io.BytesIO()
    np.savez(buffer, format="paceline-texts", version=1, tokenizer=OURS.fingerprint, model="ours", **TEXTS._asdict())
    whole = buffer.getvalue()
    at = whole.index(TEXTS.tokens.tobytes())
    return whole[:at] + b"\x07" + whole[at + 1 :]


BAD = {
    "empty": (b"", "No data left"),
    "text": (b"hello, world\n" * 9, "pickle"),
    "cut": (saved()[:-200], "not a zip|pickle|zip"),
    "flipped": (flipped(), "Bad CRC-32"),
    "another array": (one_array(), "of another kind"),
    "another archive": (saved(format=None), "of another kind"),
    "another format": (saved(format="other"), "of another kind"),
    "objects": (pickled(), "Object arrays"),
    "a later version": (saved(version=2), "version 2"),
    "no tokens": (saved(tokens=None), "tokens"),
    "wide tokens": (saved(tokens=TEXTS.tokens.astype(np.int64)), "tokens is int64"),
    "two dimensions": (saved(tokens=np.zeros((5, 1), np.int32)), "2 dimensions"),
    "lengths": (saved(lengths=np.asarray([3, 3], np.int32)), "lengths of 6 tokens, but 5"),
    "no length": (saved(lengths=np.asarray([5, 0], np.int32)), "a length of 0"),
    "overflow": (saved(lengths=np.asarray([2**31 - 1] * 2, np.int32)), "lengths of 4294967294"),
    "a foreign token": (saved(tokens=np.asarray([1, 2, 3, 4, 100], np.int32)), "token 100, the tokenizer has 100"),
    "a negative token": (saved(tokens=np.asarray([1, 2, 3, -4, 9], np.int32)), "token -4"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_refused_by_name_and_left_alone(file: Path, name: str) -> None:
    content, reason = BAD[name]
    file.write_bytes(content)
    with pytest.raises(InvalidField, match=f"store_file: got .*(?s:.)*({reason})") as refused:
        keeper(file, TextStore(MB)).load()
    assert "remove this one" in str(refused.value)
    assert file.read_bytes() == content


def test_another_tokenizer_is_refused_by_the_names_of_both_models(file: Path) -> None:
    write_store(file, TEXTS, Tokenizer("theirs", "e" * 64, 100))
    with pytest.raises(TokenizerMismatch, match=r"of theirs \(eeeeeeeeeeee\), the target is ours \(ffffffffffff\)"):
        read_store(file, OURS)


def test_places_that_cannot_hold_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="directory"):
        keeper(tmp_path, TextStore(MB)).load()
    with pytest.raises(InvalidField, match="folder that can be written"):
        keeper(tmp_path / "nowhere" / "store.npz", TextStore(MB)).load()
    with pytest.raises(InvalidField, match="a file that exists, since store_save_s is 0"):
        keeper(tmp_path / "store.npz", TextStore(MB), save_s=0).load()


def test_saving_happens_where_something_was_learned(file: Path) -> None:
    store = TextStore(MB, keep_texts=True)
    keeping = keeper(file, store)
    keeping.load()
    assert keeping.save()
    assert not file.exists()
    store.add([7, 1, 2], 1)
    store.add([3, 4, 5], 1, "another tenant")
    assert keeping.save(), "before it is indexed"
    assert read_store(file, OURS).tokens.tolist() == [1, 2]
    first = file.stat().st_ino
    assert keeping.save()
    assert file.stat().st_ino == first, "nothing new, nothing written"
    store.learn_part()
    store.add([9, 8], 0)
    assert keeping.save()
    assert read_store(file, OURS).tokens.tolist() == [1, 2, 9, 8]
    again = TextStore(MB, keep_texts=True)
    other = keeper(file, again)
    other.load()
    assert again.texts().lengths.tolist() == [2, 2]
    assert other.save()
    assert file.stat().st_ino != first


def test_a_file_that_is_only_read_is_never_written(file: Path) -> None:
    write_store(file, TEXTS, OURS)
    before = file.read_bytes()
    store = TextStore(MB)
    keeping = keeper(file, store, save_s=0)
    keeping.load()
    store.add([7, 1, 2], 1)
    assert keeping.save()
    assert file.read_bytes() == before


def test_a_save_that_fails_leaves_the_old_file_and_is_tried_again(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_store(file, TEXTS, OURS)
    before = file.read_bytes()
    store = TextStore(MB, keep_texts=True)
    keeping = keeper(file, store)
    keeping.load()
    store.add([7, 1, 2], 1)
    with monkeypatch.context() as full:

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(os, "fsync", fail)
        assert not keeping.save()
    assert "No space left" in caplog.text
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name], "no half of a file is left"
    assert keeping.save()
    assert read_store(file, OURS).tokens.tolist() == [1, 2, 3, 4, 99, 1, 2]


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file.symlink_to(tmp_path / "real" / "kept.npz")
    write_store(file, TEXTS, OURS)
    assert file.is_symlink()
    assert len(read_store(tmp_path / "real" / "kept.npz", OURS).tokens) == 5


async def test_it_is_saved_while_it_changes(file: Path) -> None:
    store = TextStore(MB, keep_texts=True)
    running = asyncio.create_task(keeper(file, store, save_s=0.01).run())
    store.add([7, 1, 2], 1)
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(file.exists):  # noqa: ASYNC110 - the file is all there is to see
            await asyncio.sleep(0.01)
    running.cancel()
    assert read_store(file, OURS).tokens.tolist() == [1, 2]


# -- the drafter -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    return save_tokenizer(tiny_model(made, vocab=300), byte_level_tokenizer(300))


def test_the_file_needs_to_know_the_target(file: Path) -> None:
    with pytest.raises(InvalidField, match="target_model: got None, allowed: the target's model"):
        load_store(DrafterConfig(store_file=str(file)))


def test_a_drafter_with_a_file_has_the_targets_tokenizer(file: Path, folder: Path) -> None:
    config = DrafterConfig(store_file=str(file), target_model=str(folder))
    proposer = load_proposer(config, load_store(config))
    assert proposer.tokenizer_fingerprint == load_tokenizer(folder).fingerprint


async def test_a_damaged_file_ends_the_start(file: Path, folder: Path) -> None:
    await asyncio.to_thread(file.write_bytes, b"\x00" * 100)
    server = DrafterServer(DrafterConfig(store_file=str(file), target_model=str(folder)))
    with pytest.raises(InvalidField, match="store_file"):
        await server.start()
    await server.stop(0)
    assert await asyncio.to_thread(file.read_bytes) == b"\x00" * 100


async def test_a_long_file_does_not_hold_up_the_start(file: Path, folder: Path) -> None:
    """The drafter answers while it indexes, and saves nothing of it away if it ends before it is through."""
    tokenizer = load_tokenizer(folder)
    tokens = np.random.default_rng(0).integers(0, 300, 400_000).astype(np.int32)
    texts = Texts(tokens, np.full(400, 1000, np.int32))
    ours = Tokenizer(str(folder), tokenizer.fingerprint, tokenizer.vocab_size)
    await asyncio.to_thread(write_store, file, texts, ours)
    server = DrafterServer(DrafterConfig(store_file=str(file), target_model=str(folder)))
    began = time.process_time()
    await server.start()
    indexed = server.store.tokens
    server.store.add([1, 2, 3], 1)
    await server.stop(0)
    assert indexed < 100_000, f"ready after {time.process_time() - began:.1f} s of computing"
    found = await asyncio.to_thread(read_store, file, ours)
    assert len(found.tokens) == 400_002
    assert found.lengths.tolist() == [1000] * 400 + [2]
