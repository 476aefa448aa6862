"""The baseline: transformers' own cached forward and `generate` on the same weights, nothing of ours around them.

In int8 and int4 the linear layers are ours, too, since transformers has none such.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.runtime.number_format import FORMATS
from paceline.study.arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Guesses:
    """What `generate` takes its candidates from: a smaller model, or the prompt; both None decodes plainly."""

    assistant: BareModel | None = None
    prompt_lookup: int | None = None  # candidates a round

    def options(self) -> dict[str, Any]:
        """Arguments of `generate`."""
        if self.assistant is not None:
            return {"assistant_model": self.assistant._model}
        return {} if self.prompt_lookup is None else {"prompt_lookup_num_tokens": self.prompt_lookup}


class BareModel:
    """A model as transformers loads it."""

    def __init__(self, folder: Path, dtype: str, device: str = "cpu") -> None:
        """Loads the weights of `folder`."""
        from transformers import AutoModelForCausalLM

        from paceline.runtime.linears import prepare_linears
        from paceline.runtime.weights import LOADING

        number_format = FORMATS[dtype]
        self._device = torch.device(device)
        with LOADING:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=number_format.torch_dtype)
        self._model = model.eval().to(self._device)
        if number_format.linear_bits is not None:
            prepare_linears(self._model, number_format, folder.name, chosen=True)

    @contextmanager
    def prefilled(self, tokens: Sequence[int], sessions: int = 1) -> Iterator[CachedPrefix]:
        """A cache that holds `tokens`, in each of `sessions` rows of a batch."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        with torch.inference_mode():
            self._model(self._ids(tokens), cache=cache, use_cache=True, logits_to_keep=1)
            if sessions > 1:
                cache.batch_repeat_interleave(sessions)
            yield CachedPrefix(self._model, cache, sessions)

    def generate(self, tokens: Sequence[int], new_tokens: int) -> list[int]:
        """Greedy reply by transformers' `generate`, at most `new_tokens`."""
        return self.generate_timed(tokens, new_tokens)[0]

    def generate_timed(
        self, tokens: Sequence[int], new_tokens: int, guesses: Guesses | None = None
    ) -> tuple[list[int], Arrivals]:
        """The same, with the arrivals of its tokens. Candidates change when they come, and not which."""
        ids, arrived = self._ids(tokens), _Arrived()
        options = {} if guesses is None else guesses.options()
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=new_tokens,
                num_beams=1,
                streamer=arrived,
                **options,
            )
        return output[0, len(tokens) :].tolist(), arrived.arrivals

    def decode_timed(self, tokens: Sequence[int], new_tokens: int) -> tuple[list[int], float]:
        """Greedy reply of `new_tokens` by a bare cached forward loop, and the seconds after prefill."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        with torch.inference_mode():
            logits = self._model(self._ids(tokens), cache=cache, use_cache=True, logits_to_keep=1).logits
            reply = [int(logits[0, -1].argmax())]
            start = time.perf_counter()
            while len(reply) < new_tokens:
                logits = self._model(self._ids(reply[-1:]), cache=cache, use_cache=True).logits
                reply.append(int(logits[0, -1].argmax()))
            return reply, time.perf_counter() - start

    def row(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` from one uncached forward.

        Returns:
            [vocab] float32.
        """
        with torch.inference_mode():
            return self._model(self._ids(tokens), use_cache=False, logits_to_keep=1).logits[0, -1].float().cpu()

    def row_cached(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens` with the last token run alone over a cache, as plain decoding runs it.

        Returns:
            [vocab] float32.
        """
        with self.prefilled(tokens[:-1]) as cached:
            return cached.forward(tokens[-1:])[0, -1].float().cpu()

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """[1, tokens] int64."""
        return torch.tensor([list(tokens)], device=self._device)


class CachedPrefix:
    """A prefix in a cache, over which blocks are run again and again; the same one in each of S sessions."""

    def __init__(self, model: Any, cache: Any, sessions: int) -> None:
        self._model, self._cache, self._sessions = model, cache, sessions

    def forward(self, tokens: Sequence[int]) -> torch.Tensor:
        """Runs `tokens` after the prefix of every session and forgets them.

        Returns:
            Logits [S, tokens, vocab].
        """
        logits: torch.Tensor = self._model(self._block(tokens), cache=self._cache, use_cache=True).logits
        self._cache.crop(-len(tokens))
        return logits

    def timed(self, tokens: Sequence[int]) -> float:
        """Seconds of one forward, the cropping left out."""
        ids = self._block(tokens)
        start = time.perf_counter()
        self._model(ids, cache=self._cache, use_cache=True)
        if ids.is_cuda:
            torch.cuda.synchronize(ids.device)
        elapsed = time.perf_counter() - start
        self._cache.crop(-len(tokens))
        return elapsed

    def _block(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(tokens)] * self._sessions, device=self._model.device)


class _Arrived:
    """A streamer of `generate` that notes when tokens come. The first call brings the prompt."""

    def __init__(self) -> None:
        self.arrivals: Arrivals = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self.arrivals.append((time.perf_counter(), value.numel()))
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""
