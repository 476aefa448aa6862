"""A decoder forward over the modules of Llama-like models, with little around their linear layers.

What transformers does between the linears of such a model takes longer than fast linears do: calls through several
modules a layer, norms of eight operations, queries and keys turned one after the other. This forward computes the
same numbers to rounding. It is taken for architectures known by name, of which every module must be one it knows,
and only where `self_check` finds it equal to the model's own forward.

Legend: T tokens of a pass, P with padding, H query heads, K KV heads, G = H / K, D head dim, R wanted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from paceline.runtime.attention import PassLayout
from paceline.runtime.models import KVShape
from paceline.runtime.norms import Norm, lean_norm

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
MODEL = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
# A linear layer may stand for several: `qkv_proj` for queries, keys and values, `gate_up_proj` for gate and up, in
# this order of outputs. Linear layers may be of any class that maps [P, in] to [P, out].
QKV, FUSED_QKV = ("q_proj", "k_proj", "v_proj"), "qkv_proj"
GATE_UP, FUSED_GATE_UP = ("gate_proj", "up_proj"), "gate_up_proj"
ATTENTION = {*QKV, FUSED_QKV, "o_proj", "q_norm", "k_norm"}
MLP = {*GATE_UP, FUSED_GATE_UP, "down_proj", "act_fn"}


class NotLean(Exception):
    """The model is not one that the lean forward knows; the text says why."""


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """The modules of one decoder layer."""

    norm: Norm
    qkv: tuple[torch.nn.Module, ...]  # one fused, or three
    query_norm: Norm | None
    key_norm: Norm | None
    scaling: float
    out: torch.nn.Module
    mlp_norm: Norm
    gate_up: tuple[torch.nn.Module, ...]  # one fused, or two
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: torch.nn.Module

    def queries_keys_values(self, hidden: torch.Tensor) -> torch.Tensor:
        """[P, (H + 2 * K) * D] of [P, hidden], in this order, not yet turned."""
        rows = self.norm(hidden)
        made = [linear(rows) for linear in self.qkv]
        return made[0] if len(made) == 1 else torch.cat(made, -1)

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] of [R, hidden]."""
        rows = self.mlp_norm(hidden)
        made = [linear(rows) for linear in self.gate_up]
        gate, up = made[0].chunk(2, -1) if len(made) == 1 else made
        found: torch.Tensor = self.down(self.activation(gate).mul_(up))
        return found


class LeanForward:
    """See the head of this file; `lean_forward` makes one."""

    def __init__(self, model: Any, layers: Sequence[LeanLayer], shape: KVShape) -> None:
        self._embed, self._rotary, self._head = model.model.embed_tokens, model.model.rotary_emb, model.lm_head
        self._norm = lean_norm(model.model.norm)
        self._layers, self._kv_heads, self._groups = layers, shape.heads, shape.groups
        self._heads = shape.heads * shape.groups  # H

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor, layout: PassLayout
    ) -> torch.Tensor:
        """See `Forward`. The last layer computes keys and values of every token, the rest for wanted rows only."""
        hidden = self._embed(ids)
        cos, sin = self._turns(hidden, positions)
        padding, last = len(ids) - layout.tokens, len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            made = self._turned(layer, layer.queries_keys_values(hidden), cos, sin)
            if padding:
                made = made.narrow(1, 0, layout.tokens)
            layout.write(number, made.narrow(0, self._heads, 2 * self._kv_heads))
            if number == last and not len(wanted):
                break
            queries = made.narrow(0, 0, self._heads).view(self._kv_heads, self._groups, layout.tokens, -1)
            mixed = layout.mix(number, queries.transpose(1, 2), layer.scaling)
            if number == last:
                mixed, hidden = mixed.index_select(0, wanted), hidden.index_select(0, wanted)
            elif padding:
                mixed = functional.pad(mixed, (0, 0, 0, padding))
            hidden.add_(layer.out(mixed))
            hidden.add_(layer.mlp(hidden))
        if not len(wanted):
            return hidden.new_empty((0, 0))
        found: torch.Tensor = self._head(self._norm(hidden))
        return found

    def _turns(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[P, 1, 2, D / 2] each: cosine and signed sine of either half of a head."""
        cos, sin = (each[0].unflatten(-1, (1, 2, -1)) for each in self._rotary(hidden[None], positions[None]))
        return cos, torch.cat((-sin[:, :, :1], sin[:, :, 1:]), 2)

    def _turned(self, layer: LeanLayer, made: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[H + 2 * K, P, D] of [P, (H + 2 * K) * D]: queries and keys normed, where the model does that, and turned.

        They are turned in place.
        """
        heads, kv_heads = self._heads, self._kv_heads
        made = made.view(len(made), heads + 2 * kv_heads, -1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys, values = made.split((heads, kv_heads, kv_heads), 1)
            made = torch.cat((layer.query_norm(queries), layer.key_norm(keys), values), 1)
        turning = made.view(len(made), heads + 2 * kv_heads, 2, -1).narrow(1, 0, heads + kv_heads)
        other = turning.flip(2)
        turning.mul_(cos).addcmul_(other, sin)
        return made.transpose(0, 1)


def lean_forward(model: Any, shape: KVShape, context_length: int) -> LeanForward:
    """The lean forward of a model of transformers, as its modules are now.

    Args:
        model: the model; its linear layers may have been replaced or fused.
        shape: of its keys and values.
        context_length: most tokens of a sequence.

    Raises NotLean.
    """
    family = type(model).__name__
    if family not in FAMILIES:
        raise NotLean(f"{family} is none of {', '.join(FAMILIES)}")
    _check_children("the model", model.model, MODEL)
    return LeanForward(model, [_layer(each, model.config, context_length) for each in model.model.layers], shape)


def _layer(layer: torch.nn.Module, config: Any, context_length: int) -> LeanLayer:
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    _check_children("a layer", layer, LAYER)
    _check_children("attention", attention, ATTENTION)
    _check_children("an MLP", mlp, MLP)
    window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
    if window is not None and window < context_length:
        raise NotLean(f"a layer attends over {window} tokens only")
    norms = [lean_norm(getattr(attention, each)) if hasattr(attention, each) else None for each in ("q_norm", "k_norm")]
    return LeanLayer(
        norm=lean_norm(layer.input_layernorm),  # type: ignore[arg-type]
        qkv=_fused_or(attention, FUSED_QKV, QKV),
        query_norm=norms[0],
        key_norm=norms[1],
        scaling=attention.scaling,
        out=attention.o_proj,
        mlp_norm=lean_norm(layer.post_attention_layernorm),  # type: ignore[arg-type]
        gate_up=_fused_or(mlp, FUSED_GATE_UP, GATE_UP),
        activation=functional.silu if type(mlp.act_fn) is torch.nn.SiLU else mlp.act_fn,
        down=mlp.down_proj,
    )


def _fused_or(module: torch.nn.Module, fused: str, single: Sequence[str]) -> tuple[torch.nn.Module, ...]:
    names = (fused,) if hasattr(module, fused) else single
    return tuple(getattr(module, name) for name in names)


def _check_children(what: str, module: torch.nn.Module, known: set[str]) -> None:
    if unknown := sorted({name for name, _ in module.named_children()} - known):
        raise NotLean(f"{what} has {', '.join(unknown)}")
