"""Weight matrices of one layer on one device, routed experts or the rest."""

import numpy as np

from primus_search.cost.memory.mixer_memory import projection_ranks
from primus_search.cost.memory.share import Share
from primus_search.space.memo import distinct
from primus_search.values.model import LayerKind, Model, Split
from primus_search.values.model.layer_weights import UNCAST, layer_weights, mlp_weights

Matrix = tuple[float, float, int]
"""Rows and columns on one device, and how many of them follow each other."""


def layer_matrices(
    model: Model, kind: LayerKind, s: Share, *, of_experts: bool, is_cast: bool | None = None
) -> list[tuple[Matrix, ...]]:
    """Matrices of one layer on one device, row by row, in the order of the model; those alone that FP8 casts or not."""
    groups, one_each, sides = layer_weights(model, kind), np.ones_like(s.tp), []
    if of_experts:
        own = mlp_weights(model, model.moe.expert_ffn_hidden, model.expert_hidden) if model.moe and kind.is_moe else ()
        groups = [[one] for one in own]
    for group in groups:
        if is_cast is None or is_cast is (group[0].group not in UNCAST):
            rows, columns = one_each * sum(one.copies * one.n for one in group), one_each * group[0].k
            ranks = s.etp if of_experts else projection_ranks(group[0], s)
            sides += [rows, columns / ranks] if group[0].split is Split.ROW else [rows / ranks, columns]
    found = np.array([s.local_experts if of_experts and groups else one_each, *sides], np.float64)
    number, first = distinct(list(found.view(np.int64)))
    of_row = found[:, first].T.tolist()
    different = [tuple((n, m, int(row[0])) for n, m in zip(row[1::2], row[2::2], strict=True)) for row in of_row]
    return [different[i] for i in number.tolist()]
