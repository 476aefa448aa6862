"""transformers as it is where torch is not installed: for a process that needs tokenizers and no model."""

from __future__ import annotations

import importlib
import os
import sys


def import_without_torch() -> None:
    """Imports transformers so that it takes torch for not installed, and offers tokenizers alone.

    It looks once, at its first import, and would load torch with whatever uses it later: two seconds of CPU at every
    start, for nothing. Other code of the process may still import torch. Does nothing where either is loaded already.
    Call it while no other thread imports torch.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        return
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would warn that models cannot be had
    sys.modules["torch"] = None  # type: ignore[assignment]  # for importlib: it cannot be imported
    try:
        importlib.import_module("transformers")
    finally:
        del sys.modules["torch"]
