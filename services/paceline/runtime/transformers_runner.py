"""The packed tree pass over causal models of transformers: no code of its own for any model."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from paceline.runtime import attention
from paceline.runtime.costs import PassCosts
from paceline.runtime.kv import KVCache, TensorStorage
from paceline.runtime.models import ModelSpec, context_limit, eos_token_ids
from paceline.runtime.plan import PassPlan, Segment
from paceline.runtime.runner import ModelInfo, PassRows

logger = logging.getLogger(__name__)

SELF_CHECK = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1}  # allowed difference of logits


class TransformersRunner:
    """A loaded model with its KV slots; see `load_runner`."""

    def __init__(self, model: Any, info: ModelInfo, kv: KVCache, storage: TensorStorage) -> None:
        self._model, self._storage = model, storage
        text = model.config.get_text_config(decoder=True)
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        self._groups = text.num_attention_heads // kv_heads
        self.info = info
        self.kv = kv
        self.costs = PassCosts.unmeasured()

    @torch.inference_mode()
    def execute(self, plan: PassPlan) -> PassRows:
        """Runs the plan as one packed forward, padded to the cheapest measured size."""
        start = time.perf_counter()
        try:
            layout = attention.lay_out(plan, self.kv, self._storage, self._groups)
            rows, index, padded = self._forward(plan, layout)
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
        device = self._storage.keys[0].device
        output = self._model(
            input_ids=torch.from_numpy(ids).to(device),
            position_ids=torch.from_numpy(positions).to(device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted or [0], device=device),
            paceline_layout=layout,
        )
        return output.logits[0, : len(wanted)].float(), index, padded

    def measure_costs(self, budget_s: float) -> None:
        """Measures the cost table, over a short prefix, within about `budget_s` seconds."""
        sequence = self.kv.open()
        try:
            self.costs = PassCosts.measure(lambda size: self.execute(_chain(sequence, size)), budget_s)
        finally:
            self.kv.release(sequence)


def load_runner(
    spec: ModelSpec, kv_tokens: int, *, vocab_size: int | None = None, page_size: int = 16, measure_s: float = 2.0
) -> TransformersRunner:
    """Loads a model and checks that the packed pass computes what the model itself computes.

    Args:
        spec: weights and how to hold them.
        kv_tokens: tokens of KV slots for all sequences together.
        vocab_size: ids that can be emitted, where the tokenizer has fewer than the model (padding is never emitted).
        page_size: tokens a KV page.
        measure_s: seconds spent on measuring passes by size; 0 leaves passes unpadded.

    Raises ModelNotFound, ModelDamaged or ModelUnsupported, naming the model and the reason.
    """
    name = spec.name or Path(spec.path).name
    device, dtype = spec.resolved_device(), spec.resolved_dtype()
    config = _load_config(spec, name)
    text = config.get_text_config(decoder=True)
    limit = context_limit(text, name)
    model = _load_model(spec, name, dtype)
    model.to(device).eval()
    pages = -(-kv_tokens // page_size)
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    storage = TensorStorage.allocate(text.num_hidden_layers, kv_heads, head_dim, pages * page_size, model.dtype, device)
    width = model.get_output_embeddings().weight.shape[0]
    info = ModelInfo(
        name=name,
        vocab_size=min(width, vocab_size or text.vocab_size),
        vocab_padded=width,
        context_length=limit.tokens,
        context_reason=limit.reason,
        eos_token_ids=eos_token_ids(model.generation_config, text),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(device),
    )
    runner = TransformersRunner(model, info, KVCache(pages, page_size, storage), storage)
    _self_check(runner, model, name)
    if measure_s > 0:
        runner.measure_costs(measure_s)
    logger.info("loaded %s: %s on %s, context %d (%s)", name, info.dtype, info.device, limit.tokens, limit.reason)
    return runner


def _load_config(spec: ModelSpec, name: str) -> Any:
    folder = Path(spec.path)
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{name}: {folder} is not a model folder: it holds no config.json")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnsupported(f"{name}: transformers does not know this model: {_first_line(error)}") from error


def _load_model(spec: ModelSpec, name: str, dtype: torch.dtype) -> Any:
    """Loads the weights; every tensor must be there, since transformers would fill a missing one at random."""
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            spec.path,
            dtype=dtype,
            attn_implementation=attention.NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError) as error:
        raise ModelUnsupported(
            f"{name}: transformers cannot load it as a causal model: {_first_line(error)}"
        ) from error
    except Exception as error:  # safetensors and the file system raise their own types for a damaged file
        raise ModelDamaged(
            f"{name}: its weights cannot be read: {_first_line(error)}; fetch the model again"
        ) from error
    if type(model)._is_stateful:
        raise ModelUnsupported(f"{name}: it keeps a recurrent state, which cannot be rolled back along a draft tree")
    if not type(model)._supports_attention_backend:
        raise ModelUnsupported(f"{name}: its attention cannot be replaced (no attention backend in transformers)")
    if missing := sorted(loading["missing_keys"]):
        raise ModelDamaged(
            f"{name}: the checkpoint lacks {', '.join(missing[:3])}; it would be served with random weights"
        )
    if mismatched := sorted(str(key) for key in loading.get("mismatched_keys", ())):
        raise ModelDamaged(f"{name}: tensors differ in shape from the configuration: {', '.join(mismatched[:3])}")
    return model


@torch.inference_mode()
def _self_check(runner: TransformersRunner, model: Any, name: str) -> None:
    """Compares a small tree over a short prefix with the model's own forward of each path."""
    vocab = runner.info.vocab_size
    prefix = [(7 * i + 3) % vocab for i in range(5)]
    tokens, parents = [(11 * i + 5) % vocab for i in range(4)], [-1, 0, 0, 2]
    sequence = runner.kv.open()
    try:
        runner.execute(PassPlan((Segment.chain(sequence, prefix, last_row=False),)))
        runner.kv.keep(sequence, range(len(prefix)))
        tree = Segment(sequence, np.asarray(tokens, np.int32), np.asarray(parents, np.int32), (0, 1, 2, 3))
        packed = runner.execute(PassPlan((tree,)))
        model.set_attn_implementation("sdpa" if type(model)._supports_sdpa else "eager")
        for node in tree.rows:
            path, at = [], node
            while at >= 0:
                path.append(tokens[at])
                at = parents[at]
            ids = torch.tensor([prefix + path[::-1]], device=model.device)
            own = model(input_ids=ids, use_cache=False).logits[0, -1].float()
            worst = float((own - packed.logits(0, node)).abs().max())
            if not worst <= SELF_CHECK[model.dtype]:
                raise ModelUnsupported(
                    f"{name}: the packed pass differs from the model's own forward by {worst:.2g} in a logit "
                    f"(allowed {SELF_CHECK[model.dtype]:g}); its attention is not plain causal attention"
                )
    except ModelUnsupported as error:
        raise error if str(error).startswith(name) else ModelUnsupported(f"{name}: {error}") from None
    finally:
        runner.kv.release(sequence)
        model.set_attn_implementation(attention.NAME)


def _chain(sequence: int, size: int) -> PassPlan:
    segment = Segment(sequence, np.zeros(size, np.int32), np.arange(-1, size - 1, dtype=np.int32), tuple(range(size)))
    return PassPlan((segment,))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
