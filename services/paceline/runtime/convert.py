"""One-time conversion of a GGUF file to a transformers folder."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ModelDamaged


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes safetensors (float32), configuration and tokenizer of `gguf` into `folder`.

    Raises ModelDamaged if the file cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
    except Exception as error:  # the GGUF reader raises many types for a damaged file
        raise ModelDamaged(f"{gguf.name} cannot be converted: {error}") from error
    finally:
        transformers_logging.enable_progress_bar()
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
