"""Bytes per unit of `ranks`, split by the part of `Memory` each unit fills: one column per (part, unit) that counts."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.memory import buffers
from primus_search.cost.memory.activations import has_inputs_away, layer_activations, layer_input, seen
from primus_search.cost.memory.logits import head_memory, head_weight_gradient
from primus_search.cost.memory.mixer_memory import mixer_share_params
from primus_search.cost.memory.parameters import (
    ModelState,
    base_bytes,
    embedding_state,
    layer_dense_params,
    layer_expert_params,
    layer_state,
    mtp_state,
    state,
    trained_shares,
)
from primus_search.cost.memory.rank_moments import Units, memory_kinds
from primus_search.cost.memory.share import BF16_BYTES, Share
from primus_search.cost.memory.tower_memory import tower_state, towers_kept
from primus_search.cost.memory.whole_matrices import empty_room
from primus_search.space.memo import in_order
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

PARTS = (
    "weights", "gradients", "optimizer", "activations", "recompute_workspace", "logits", "workspace",
    "collective_buffers",
)  # fmt: skip
"""Parts that are units times prices; context, expert buffers and allocator slack follow from the rest."""

STATIC_PARTS = ("weights", "gradients", "optimizer")
"""Parts that stay from step to step."""

EXPLICIT_PARTS = (*STATIC_PARTS, "logits")
"""Parts whose bytes per element the stack states; the others count activations at two bytes."""

INPUTS_IN_FLIGHT = 2.0
"""Offloaded inputs of recomputed layers on the device: the layer's own, and the next one's as it arrives. Source:
pytorch/torchtune training/_activation_offloading.py, which fetches one tensor ahead in backward."""


@dataclass(slots=True, kw_only=True, eq=False)
class Prices:
    """Bytes per unit: a list of (part, unit, bytes per candidate), always in the same order for a model.

    element_scale  bytes of an activation element over the two that the formulas count (FP32 training: 2)
    held_models, trained_models  models of which a device holds weights, and gradients and states as well
    """

    rows: int
    element_scale: float = 1.0
    held_models: int = 1
    trained_models: int = 1
    part: list[int] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    columns: list[Floats] = field(default_factory=list)

    def put(self, part: str, unit: int, bytes_per_unit: Floats) -> None:
        self.part.append(PARTS.index(part))
        self.unit.append(unit)
        scale = 1.0 if part in EXPLICIT_PARTS else self.element_scale
        self.columns.append(np.broadcast_to(bytes_per_unit * scale, (self.rows,)))

    def put_state(self, unit: int, bytes_of: ModelState) -> None:
        self.put("weights", unit, bytes_of.weights * self.held_models)
        self.put("gradients", unit, bytes_of.gradients * self.trained_models)
        self.put("optimizer", unit, bytes_of.optimizer * self.trained_models)

    @property
    def array(self) -> Floats:
        """(rows, entries)"""
        return np.stack(self.columns, axis=1)

    def per_unit(self, units: range, factor_of_part: NDArray[np.float64]) -> Floats:
        """(rows, units): all parts of a unit together, each times its factor."""
        total = np.zeros((self.rows, len(units)))
        for part, unit, column in zip(self.part, self.unit, self.columns, strict=True):
            total[:, unit - units.start] += column * factor_of_part[part]
        return total


def element_scale(stack: Stack) -> float:
    """Bytes of an activation element over the BF16 ones that the formulas count."""
    return stack.memory.element_bytes / BF16_BYTES


def state_prices(model: Model, stack: Stack, workload: Workload, s: Share) -> Prices:
    """What follows from parameters: weights, gradients, optimizer, gradients in flight, FSDP's gathered layers."""
    kinds = memory_kinds(model)
    units, prices = Units(len(kinds)), Prices(rows=len(s.tp), element_scale=element_scale(stack))
    prices.held_models, prices.trained_models = workload.held_models, workload.trained_models
    for k, kind in enumerate(kinds):
        prices.put_state(units.at("layers", k), layer_state(model, stack, kind, s))
        count = layer_dense_params(model, kind, s) + (layer_expert_params(model, s) if kind.is_moe else 0.0)
        trained = in_order(trained_shares(model, kind, s))
        gathered = buffers.gathered_bytes(stack, s, count, trained, model.num_layers, base_bytes(model))
        prices.put("collective_buffers", units.at("gathers", k), gathered)
    matrix, norm = model.head_params / s.tp, np.full_like(s.tp, model.norm_params)
    embedding, head = units.at("embedding"), units.at("head")
    rows = embedding_state(model, stack, s)
    for tower in model.towers:
        rows = rows.plus(tower_state(tower, stack, s))
    prices.put_state(embedding, rows)
    prices.put("collective_buffers", embedding, buffers.gathered_ends_bytes(stack, s, rows.count, has_gradient=False))
    is_trained = model.adapters is None
    prices.put("collective_buffers", head, buffers.gathered_ends_bytes(stack, s, matrix, has_gradient=is_trained))
    prices.put_state(head, state(stack, s, matrix, s.shards, is_linear=False, is_trained=is_trained))
    prices.put_state(units.at("final_norm"), state(stack, s, norm, s.shards, is_linear=False, is_trained=is_trained))
    prices.put_state(units.at("mtp"), mtp_state(model, stack, s))
    for unit, room in empty_room(model, stack, s) if is_trained else ():
        prices.put_state(units.at(unit), room)
    moe, nothing = model.moe, np.zeros_like(s.tp)
    experts = nothing if moe is None else model.expert_params / s.etp + model.shared_expert_params / s.tp
    widest = np.maximum.reduce([mixer_share_params(model.mixer(kind), model.hidden, s) for kind in kinds])
    in_flight = {"attention": widest, "mlp": model.dense_mlp_params / s.tp, "experts": experts}
    for name, shapes in in_flight.items():
        beside = buffers.weight_gradient_bytes(stack, s, shapes) if is_trained else nothing
        prices.put("workspace", units.at(f"{name}_present"), beside)
    runs = units.at("head_gathers")
    prices.put("workspace", runs, head_weight_gradient(model, s))
    prices.put("collective_buffers", runs, buffers.gathered_head_bytes(stack, s, matrix, has_gradient=is_trained))
    return prices


def activation_prices(model: Model, stack: Stack, workload: Workload, s: Share) -> Prices:
    """What follows from tokens: saved activations, their gradients, recompute, logits, hops."""
    kinds = memory_kinds(model)
    units, prices = Units(len(kinds)), Prices(rows=len(s.tp), element_scale=element_scale(stack))
    kept_input, is_away = layer_input(model, s), has_inputs_away(s)
    arriving = np.where(is_away, INPUTS_IN_FLIGHT * kept_input, 0.0)
    for k, kind in enumerate(kinds):
        view, _, own = seen(model, kind, s)
        context = buffers.context_buffer(view, kind.mixer, own)
        layer = layer_activations(model, stack, kind, s, workload.seq_length)
        prices.put("activations", units.at("live", k), layer.kept)
        prices.put("activations", units.at("waiting", k), layer.waiting)
        prices.put("recompute_workspace", units.at("working", k), layer.recomputed)
        prices.put("recompute_workspace", units.at("again", k), layer.kept + arriving)
        prices.put("workspace", units.at("working", k), layer.backward)
        prices.put("collective_buffers", units.at("working", k), context)
    head = head_memory(model, stack, s)
    prices.put("activations", units.at("inputs"), np.where(is_away, 0.0, kept_input))
    prices.put("activations", units.at("head_live"), head.inputs)
    prices.put("activations", units.at("head_waiting"), head.waiting_input)
    prices.put("logits", units.at("head_live"), head.kept_logits)
    prices.put("logits", units.at("head_waiting"), head.waiting_logits)
    prices.put("logits", units.at("head_runs"), head.running_logits)
    prices.put("workspace", units.at("head_runs"), head.gathered)
    prices.put("workspace", units.at("head_present"), head.gathered_input)
    prices.put("collective_buffers", units.at("hop"), buffers.pipeline_buffer(model, s))
    prices.put("activations", units.at("tower_live"), towers_kept(model, stack, workload, s))
    return prices
