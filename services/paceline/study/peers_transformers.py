"""Decoding by transformers: plain, assisted by a smaller model, and by prompt lookup."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.study.bare import BareModel, Guesses
from paceline.study.peers import Decoded, System

GENERATE = "transformers generate"
LOOKUP_TOKENS = 10  # candidates a round of prompt lookup, as its documentation has it


def transformers_systems(
    bare: Mapping[str, BareModel], assistant: Path | None, device: str, new_tokens: int
) -> list[System]:
    """`generate` in every format of `bare`; assisted generation and prompt lookup in float32.

    Args:
        bare: models by format, float32 among them.
        assistant: folder of a smaller model with the same tokenizer; None leaves assisted generation out.
        device: of the assistant.
        new_tokens: most tokens of a reply.
    """
    logging.getLogger("transformers.generation").setLevel(logging.ERROR)  # it tells on every call what it would default
    systems = [_system(GENERATE, dtype, model, Guesses(), new_tokens) for dtype, model in bare.items()]
    exact = bare["float32"]
    if assistant is not None:
        guesses = Guesses(assistant=BareModel(assistant, "float32", device))
        systems.append(_system("transformers assisted", "float32", exact, guesses, new_tokens))
    guesses = Guesses(prompt_lookup=LOOKUP_TOKENS)
    systems.append(_system("transformers prompt lookup", "float32", exact, guesses, new_tokens))
    return systems


def _system(name: str, dtype: str, model: BareModel, guesses: Guesses, new_tokens: int) -> System:
    async def decode(prompt: Sequence[int]) -> Decoded:
        # In the thread that has loaded the model: OpenMP helpers of a second one would slow every operator. Nothing
        # else goes on meanwhile, so the loop may stand still.
        return Decoded.of(*model.generate_timed(prompt, new_tokens, guesses))

    return System(name, dtype, decode)
