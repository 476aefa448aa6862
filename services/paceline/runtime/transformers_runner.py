"""The packed tree pass over causal models of transformers: no code of its own for any model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import InvalidField
from paceline.runtime import attention
from paceline.runtime.costs import SIZES, PassCosts
from paceline.runtime.kv import KVCache, TensorStorage
from paceline.runtime.linears import prepare_linears
from paceline.runtime.models import KVShape, ModelSpec, context_limit, eos_token_ids
from paceline.runtime.number_format import usable
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelInfo, PassRows
from paceline.runtime.self_check import self_check
from paceline.runtime.weights import load_config, load_weights

LEAST_KV_TOKENS = 32  # what the check at load needs

log = logging.getLogger(__name__)


class TransformersRunner:
    """A loaded model with its KV slots; see `load_runner`."""

    def __init__(self, model: Any, info: ModelInfo, kv: KVCache, storage: TensorStorage, groups: int) -> None:
        """`groups`: query heads per KV head."""
        self._model, self._storage, self._groups = model, storage, groups
        self._device = storage.keys[0].device
        self.info = info
        self.kv = kv
        self.costs = PassCosts.unmeasured()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of all slots."""
        return sum(tensor.nbytes for tensor in (*self._storage.keys, *self._storage.values))

    @torch.inference_mode()
    def execute(self, plan: PassPlan) -> PassRows:
        """Runs the plan as one packed forward, padded to the cheapest measured size.

        Nodes at or beyond `info.context_length` are run as if at the last position; their rows mean nothing.
        """
        start = time.perf_counter()
        try:
            layout = attention.lay_out(plan, self.kv, self._storage, self._groups, self.info.context_length)
            rows, index, padded = self._forward(plan, layout)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # so that errors and seconds belong to this pass
        except BaseException:
            for segment in plan.segments:
                self.kv.drop_scratch(segment.sequence)
            raise
        return PassRows(rows, index, time.perf_counter() - start, plan.tokens, padded)

    def _forward(
        self, plan: PassPlan, layout: attention.PassLayout
    ) -> tuple[torch.Tensor, dict[tuple[int, int], int], int]:
        padded = self.costs.padded(plan.tokens)
        ids = np.zeros((1, padded), dtype=np.int64)
        positions = np.zeros((1, padded), dtype=np.int64)
        wanted: list[int] = []
        index: dict[tuple[int, int], int] = {}
        for number, (segment, where) in enumerate(zip(plan.segments, layout.segments, strict=True)):
            ids[0, where.first : where.last] = segment.tokens
            positions[0, where.first : where.last] = self.kv.length(segment.sequence) + attention.depths(segment)
            for node in segment.rows:
                index[number, node] = len(wanted)
                wanted.append(where.first + node - segment.base)
        np.minimum(positions, self.info.context_length - 1, out=positions)
        output = self._model(
            input_ids=torch.from_numpy(ids).to(self._device),
            position_ids=torch.from_numpy(positions).to(self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted or [0], device=self._device),
            paceline_layout=layout,
        )
        return output.logits[0, : len(wanted)].float(), index, padded

    def measure_costs(self, budget_s: float) -> None:
        """Measures the cost table, without a prefix, within about `budget_s` seconds."""
        room = min(SIZES[-1], self.info.context_length, self.kv.pages_total * self.kv.page_size)
        sequence = self.kv.open()
        try:
            self.costs = PassCosts.measure(
                lambda size: self.execute(_chain(sequence, size)), budget_s, most_tokens=room
            )
        finally:
            self.kv.release(sequence)


def load_runner(
    spec: ModelSpec, kv_tokens: int, *, vocab_size: int | None = None, page_size: int = 16, measure_s: float = 2.0
) -> TransformersRunner:
    """Loads a model and checks that the packed pass computes what the model itself computes.

    Args:
        spec: weights and how to hold them.
        kv_tokens: tokens of KV slots for all sequences together, at least 32.
        vocab_size: ids that can be emitted, where the tokenizer has fewer than the model (padding is never emitted).
        page_size: tokens a KV page.
        measure_s: seconds spent on measuring passes by size; 0 leaves passes unpadded.

    Raises ModelNotFound, ModelDamaged or ModelUnsupported, naming the model and the reason, or InvalidField.
    """
    folder = Path(spec.path)
    name = spec.name or folder.name
    return runner_of(
        load_config(folder, name),
        lambda dtype: load_weights(folder, name, dtype, attention.NAME),
        spec,
        kv_tokens,
        vocab_size=vocab_size,
        page_size=page_size,
        measure_s=measure_s,
    )


def runner_of(
    config: Any,
    load: Callable[[torch.dtype], Any],
    spec: ModelSpec,
    kv_tokens: int,
    *,
    vocab_size: int | None = None,
    page_size: int = 16,
    measure_s: float = 2.0,
    token_ids: NDArray[np.int32] | None = None,
) -> TransformersRunner:
    """The runner of a model, checked as `load_runner` says.

    Args:
        config: its configuration.
        load: loads it with the packed attention, in a number format; called once the configuration is found fit.
        spec: how to hold it.
        kv_tokens: see `load_runner`.
        vocab_size: see `load_runner`.
        page_size: see `load_runner`.
        measure_s: see `load_runner`.
        token_ids: ids of its head's rows, ascending; None: a row is its id.

    Raises what `load_runner` does.
    """
    if kv_tokens < LEAST_KV_TOKENS:
        raise InvalidField("kv_tokens", kv_tokens, f"at least {LEAST_KV_TOKENS}", "a session needs one slot a token")
    name = spec.name or Path(spec.path).name
    device, number_format = spec.resolved_device(), spec.number_format()
    dtype = number_format.torch_dtype
    text = config.get_text_config(decoder=True)
    limit, shape = context_limit(text, name), KVShape.of(text, name)
    model = load(dtype).to(device).eval()
    pages = -(-kv_tokens // page_size)
    storage = TensorStorage.allocate(shape.layers, shape.heads, shape.head_dim, pages * page_size, dtype, device)
    table = model.get_output_embeddings() if token_ids is None else model.get_input_embeddings()
    width = table.weight.shape[0]
    number_format = prepare_linears(model, number_format, name, chosen=spec.dtype != "auto")
    info = ModelInfo(
        name=name,
        vocab_size=min(width, vocab_size or text.vocab_size),
        vocab_padded=width,
        context_length=limit.tokens,
        context_reason=limit.reason,
        eos_token_ids=eos_token_ids(model.generation_config, text),
        dtype=number_format.name,
        device=str(device),
        token_ids=token_ids,
    )
    runner = TransformersRunner(model, info, KVCache(pages, page_size, storage), storage, shape.groups)
    self_check(runner, model, attention.NAME, name)
    if measure_s > 0:
        runner.measure_costs(measure_s)
    log.info("loaded %s: %s on %s, context %d (%s)", name, info.dtype, info.device, limit.tokens, limit.reason)
    if spec.dtype == "auto" and info.dtype == "float32" and (coarser := usable(device)[1:]):
        log.info("%s: faster formats, of coarser numbers, that this machine has: %s (dtype)", name, ", ".join(coarser))
    return runner


def _chain(sequence: int, size: int) -> PassPlan:
    segment = Segment(sequence, np.zeros(size, np.int32), np.arange(-1, size - 1, dtype=np.int32), tuple(range(size)))
    return PassPlan((segment,))
