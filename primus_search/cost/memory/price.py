"""Bytes per unit of `ranks`: one row of prices per candidate, split by the part of `Memory` each unit fills."""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Floats
from primus_search.cost.memory import buffers
from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.logits import head_memory
from primus_search.cost.memory.parameters import (
    State,
    attention_params,
    embedding_state,
    layer_dense_params,
    layer_expert_params,
    layer_state,
    mtp_state,
    state,
)
from primus_search.cost.memory.ranks import Units
from primus_search.cost.memory.share import Share
from primus_search.model import Model
from primus_search.stack import Stack
from primus_search.workload import Workload

PARTS = (
    "weights", "gradients", "optimizer", "activations", "recompute_workspace", "logits", "workspace",
    "collective_buffers",
)  # fmt: skip
"""Parts that are units times prices; context, expert buffers and allocator slack follow from the rest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Bytes per unit by part: (rows, units) each."""

    parts: dict[str, Floats]

    @property
    def total(self) -> Floats:
        total: Floats = np.sum(list(self.parts.values()), axis=0)
        return total


def state_prices(model: Model, stack: Stack, s: Share) -> Prices:
    """What follows from parameters: weights, gradients, optimizer, gradients in flight, FSDP's gathered layers."""
    columns = Units(len(model.kinds))
    parts = _empty(columns, s)
    for k, kind in enumerate(model.kinds):
        _put_state(parts, columns.layers(k), layer_state(model, stack, kind, s))
        experts = layer_expert_params(model, s) if kind.is_moe else 0.0
        gathered = buffers.gathered_bytes(stack, s, layer_dense_params(model, kind, s) + experts)
        parts["collective_buffers"][:, columns.working(k)] = gathered
    _put_state(parts, columns.other("embedding"), embedding_state(model, stack, s))
    _put_state(parts, columns.other("head"), state(stack, s, model.head_params / s.tp, s.shards, is_linear=False))
    norm = np.full_like(s.tp, model.norm_params)
    _put_state(parts, columns.other("final_norm"), state(stack, s, norm, s.shards, is_linear=False))
    _put_state(parts, columns.other("mtp"), mtp_state(model, stack, s))
    _put_gradients(model, stack, s, columns, parts)
    head = columns.other("head_runs")
    parts["workspace"][:, head] = head_memory(model, stack, s).weight_gradient
    parts["collective_buffers"][:, head] = buffers.gathered_bytes(stack, s, model.head_params / s.tp)
    return Prices(parts=parts)


def activation_prices(model: Model, stack: Stack, workload: Workload, s: Share) -> Prices:
    """What follows from tokens: saved activations, their gradients, recompute, logits, hops."""
    columns = Units(len(model.kinds))
    parts = _empty(columns, s)
    for k, kind in enumerate(model.kinds):
        layer = layer_activations(model, stack, kind, s, workload.seq_length)
        parts["activations"][:, columns.live(k)] = layer.kept
        parts["activations"][:, columns.waiting(k)] = layer.waiting
        parts["recompute_workspace"][:, columns.working(k)] = layer.recomputed
        parts["recompute_workspace"][:, columns.again(k)] = np.maximum(layer.whole - layer.recomputed, 0.0)
        parts["workspace"][:, columns.working(k)] = layer.backward
        parts["activations"][:, columns.other("inputs")] = layer.layer_input
        parts["collective_buffers"][:, columns.working(k)] = buffers.context_buffer(model, stack, s)
    head = head_memory(model, stack, s)
    parts["activations"][:, columns.other("head_live")] = head.waiting
    parts["logits"][:, columns.other("head_runs")] = head.logits
    parts["collective_buffers"][:, columns.other("hop")] = buffers.pipeline_buffer(model, s)
    return Prices(parts=parts)


def _put_gradients(model: Model, stack: Stack, s: Share, columns: Units, parts: dict[str, Floats]) -> None:
    """Weight gradients beside the main ones: kept for good with placeholders, else while a layer runs backward."""
    moe = model.moe
    attention = attention_params(model, s)
    mlp = model.dense_mlp_params / s.tp
    experts = np.zeros_like(s.tp)
    if moe is not None:
        experts = model.expert_params / s.etp + model.shared_expert_params / s.tp
    for name, shapes in (("attention", attention), ("mlp", mlp), ("experts", experts)):
        bytes_kept = buffers.weight_gradient_bytes(stack, s, [shapes])
        parts["workspace"][:, columns.other(f"{name}_present")] = bytes_kept


def _empty(columns: Units, s: Share) -> dict[str, Floats]:
    return {part: np.zeros((len(s.tp), columns.width)) for part in PARTS}


def _put_state(parts: dict[str, Floats], unit: int, bytes_of: State) -> None:
    parts["weights"][:, unit] = bytes_of.weights
    parts["gradients"][:, unit] = bytes_of.gradients
    parts["optimizer"][:, unit] = bytes_of.optimizer
