"""Models by Hugging Face id."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ModelNotFound

# The root of a repository: safetensors, configuration, tokenizer. No pickles, no copies in other formats.
WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
UNWANTED = ["*/*", "consolidated*"]


def snapshot(reference: str) -> Path:
    """The folder of a model `owner/name` in Hugging Face's own cache, downloaded if it is not there yet.

    Raises ModelNotFound with the reason if it is neither there nor to be had.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(reference, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except Exception as error:  # the hub raises errors of its own, of its HTTP library, and of the system
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelNotFound(
            f"{reference} is not a folder here and could not be had from the Hugging Face hub: {reason}"
        ) from error
