"""Errors of the services. `paceline.rpc.status` maps each type to a gRPC status in one table."""

from __future__ import annotations


class PacelineError(Exception):
    """Base of every error that a caller may see; its text is safe to show."""


class InvalidField(PacelineError):
    """A request or configuration field is wrong."""

    def __init__(self, field: str, got: object, allowed: str, remedy: str = "") -> None:
        """`allowed` states the range in words; `remedy` says what to do, where that is not plain from the range."""
        self.field, self.got, self.allowed, self.remedy = field, got, allowed, remedy
        text = f"{field}: got {_short(got)}, allowed: {allowed}"
        super().__init__(f"{text}. {remedy}" if remedy else text)


class UnsupportedField(PacelineError):
    """A field that this version knows by name and does not serve."""

    def __init__(self, field: str, remedy: str = "leave it out") -> None:
        self.field = field
        super().__init__(f"{field} is not supported yet: {remedy}")


class ModelNotFound(PacelineError):
    """The request, or the configuration, names a model that is not here."""


class ModelUnsupported(PacelineError):
    """A model that the engine cannot serve exactly; the text names the model and the reason."""


class ModelDamaged(PacelineError):
    """Files of a model are missing, corrupt or incomplete; the text names the file or tensor and the remedy."""


class TokenizerMismatch(PacelineError):
    """Drafter and target do not share a tokenizer; the text names the first difference."""


class Overloaded(PacelineError):
    """A limit is reached; the text names it. Nothing was started."""


class Unavailable(PacelineError):
    """The service cannot answer now; trying again, perhaps elsewhere, may work."""


class DeadlineExceeded(PacelineError):
    """The request's deadline passed."""


class EngineFault(PacelineError):
    """One session's computation failed, for example on non-finite logits. Other sessions are untouched."""


def _short(value: object, limit: int = 80) -> str:
    """A value for a message. Of a long one the middle is left out: the end of a path says which file it is."""
    text = repr(value)
    half = limit // 2 - 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"
