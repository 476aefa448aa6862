"""The baseline: transformers' own cached forward and `generate` on the same weights, nothing of ours around them.

In int8 and int4 the linear layers are ours, too, since transformers has none such.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paceline.runtime.number_format import FORMATS


class BareModel:
    """A model as transformers loads it."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Loads the weights of `folder`."""
        from transformers import AutoModelForCausalLM

        from paceline.runtime.linears import prepare_linears
        from paceline.runtime.weights import LOADING

        number_format = FORMATS[dtype]
        with LOADING:
            self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=number_format.torch_dtype).eval()
        if number_format.linear_bits is not None:
            prepare_linears(self._model, number_format, folder.name, chosen=True)

    @contextmanager
    def prefilled(self, tokens: Sequence[int]) -> Iterator[CachedPrefix]:
        """A cache that holds `tokens`."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        with torch.inference_mode():
            self._model(torch.tensor([list(tokens)]), cache=cache, use_cache=True, logits_to_keep=1)
            yield CachedPrefix(self._model, cache)

    def generate(self, tokens: Sequence[int], new_tokens: int) -> list[int]:
        """Greedy reply by transformers' `generate`, at most `new_tokens`."""
        ids = torch.tensor([list(tokens)])
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, num_beams=1
            )
        return output[0, len(tokens) :].tolist()

    def decode_timed(self, tokens: Sequence[int], new_tokens: int) -> tuple[list[int], float]:
        """Greedy reply of `new_tokens` by a bare cached forward loop, and the seconds after prefill."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        with torch.inference_mode():
            logits = self._model(torch.tensor([list(tokens)]), cache=cache, use_cache=True, logits_to_keep=1).logits
            reply = [int(logits[0, -1].argmax())]
            start = time.perf_counter()
            while len(reply) < new_tokens:
                logits = self._model(torch.tensor([[reply[-1]]]), cache=cache, use_cache=True).logits
                reply.append(int(logits[0, -1].argmax()))
            return reply, time.perf_counter() - start

    def row(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` from one uncached forward.

        Returns:
            [vocab] float32.
        """
        with torch.inference_mode():
            return self._model(torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=1).logits[0, -1].float()

    def row_cached(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` with the last token run alone over a cache, as plain decoding runs it.

        Returns:
            [vocab] float32.
        """
        with self.prefilled(tokens[:-1]) as cached:
            return cached.forward(tokens[-1:])[0, -1].float()


class CachedPrefix:
    """A prefix in a cache, over which blocks are run again and again."""

    def __init__(self, model: Any, cache: Any) -> None:
        self._model, self._cache = model, cache

    def forward(self, tokens: Sequence[int]) -> torch.Tensor:
        """Runs `tokens` after the prefix and forgets them.

        Returns:
            Logits [1, tokens, vocab].
        """
        logits = self._model(torch.tensor([list(tokens)]), cache=self._cache, use_cache=True).logits
        self._cache.crop(-len(tokens))
        return logits

    def timed(self, tokens: Sequence[int]) -> float:
        """Seconds of one forward, the cropping left out."""
        ids = torch.tensor([list(tokens)])
        start = time.perf_counter()
        self._model(ids, cache=self._cache, use_cache=True)
        elapsed = time.perf_counter() - start
        self._cache.crop(-len(tokens))
        return elapsed
