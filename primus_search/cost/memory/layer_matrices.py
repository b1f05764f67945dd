"""Weight matrices of one layer on one device, routed experts or the rest."""

from collections import defaultdict

import numpy as np

from primus_search.cost.memory.mixer_memory import projection_ranks
from primus_search.cost.memory.share import Share
from primus_search.values.candidates import Floats
from primus_search.values.model import Attention, LatentMixer, LayerKind, Model
from primus_search.values.model.mixer import Split, WeightMatrix

Matrix = tuple[float, float, int]
"""Rows and columns on one device, and how many of them follow each other."""


def layer_matrices(model: Model, kind: LayerKind, s: Share, *, of_experts: bool) -> list[tuple[Matrix, ...]]:
    """Matrices of one layer on one device, row by row, in the order of the model."""
    up, hidden, found = model.num_mlp_matrices - 1, model.hidden, list[tuple[Floats | float, Floats | float]]()
    experts = model.moe if kind.is_moe else None
    if of_experts and experts is not None:
        outer, inner = experts.latent_hidden or hidden, experts.expert_ffn_hidden / s.etp
        found = [(up * inner, outer), (outer, inner)]
    elif not of_experts:
        mixer, groups = model.mixer(kind), defaultdict[str, list[WeightMatrix]](list)
        for one in mixer.projections(hidden):
            groups[one.group].append(one)
        is_attention = isinstance(mixer, Attention | LatentMixer)  # whose output is made first
        for group in sorted(groups.values(), key=lambda group: is_attention and group[0].split is not Split.ROW):
            is_row, ranks = group[0].split is Split.ROW, projection_ranks(group[0], s)
            rows, columns = sum(one.copies * one.n for one in group), group[0].k
            found.append((rows, columns / ranks) if is_row else (rows / ranks, columns))
        found += [(experts.num_experts, hidden)] if experts is not None else []
        width = model.beside_mixer_params(kind)[0] / ((up + 1) * hidden + up * model.has_linear_bias) / s.tp
        found += [(up * width, hidden), (hidden, width)]
    copies = (experts.num_experts / s.ep).astype(int) if of_experts and experts is not None else np.ones(len(s.tp), int)
    sides = [np.broadcast_arrays(n, m, s.tp)[:2] for n, m in found]
    return [
        tuple((float(n[i]), float(m[i]), int(many)) for n, m in sides if n[i] * m[i]) for i, many in enumerate(copies)
    ]
