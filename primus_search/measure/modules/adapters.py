"""Low-rank adapters on the modules of a layer whose own weights are frozen."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from primus_search.base.guards.files import table_beside
from primus_search.measure.modules.products import grouped_product
from primus_search.measure.modules.shard import Shard
from primus_search.values.model import LayerKind, Model, Split, adapted_matrices
from primus_search.values.model.adapters import EACH, FC1, QKV, Adapted, Adapters

PLACES: Mapping[str, Sequence[str]] = table_beside(__file__)["places"]
"""Modules of a layer that hold the matrices of a name; of a latent attention `linear_q` is its `q_up`."""


class LowRank(nn.Module):
    """The output of one adapter, B A x alpha / r, in columns `start` to `start + n` of the product beside it."""

    def __init__(self, adapters: Adapters, n: int, k: int, *, ranks: int = 1, repeats: int = 1, start: int = 0) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(adapters.rank, k) * k**-0.5)
        self.up = nn.Parameter(torch.zeros(n // repeats, adapters.rank))
        self.scale, self.dropout = adapters.alpha / adapters.rank, adapters.dropout
        self.ranks, self.repeats, self.start = ranks, repeats, start

    def forward(self, x: Tensor, width: int) -> Tensor:
        """The adapter's part of a product of `width` columns, zeros beside its own."""
        full = x.repeat(1, self.ranks, 1) if self.ranks > 1 else x
        full = _dropped(full, self.dropout)
        out = F.linear(F.linear(full, self.down), self.up) * self.scale
        out = out.repeat(1, 1, self.repeats) if self.repeats > 1 else out
        before, after = self.start, width - self.start - out.shape[-1]
        return F.pad(out, (before, after)) if before or after else out


def _dropped(x: Tensor, share: float) -> Tensor:
    """Dropout that keeps a mask of one byte per element, as devices do; x itself where nothing is dropped."""
    return torch.native_dropout(x, share, True)[0] if share else x


class LowRankExperts(nn.Module):
    """Adapters of one matrix of the routed experts, [groups, rows, K] to [groups, rows, N]."""

    def __init__(self, adapters: Adapters, groups: int, n: int, k: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(groups, k, adapters.rank) * k**-0.5)
        self.up = nn.Parameter(torch.zeros(groups, adapters.rank, n))
        self.scale, self.dropout = adapters.alpha / adapters.rank, adapters.dropout

    def forward(self, rows: Tensor) -> Tensor:
        rows = _dropped(rows, self.dropout)
        if len(self.down) == len(rows):
            return grouped_product(grouped_product(rows, self.down), self.up) * self.scale
        return (rows @ self.down[0]) @ self.up[0] * self.scale


def adapt(layer: nn.Module, model: Model, shard: Shard, kind: LayerKind) -> None:
    """Freezes a layer's weights and puts its adapters beside them."""
    layer.requires_grad_(False)
    adapters = model.adapters
    assert adapters is not None
    for one in adapted_matrices(model, kind):
        if one.of_experts:
            _adapt_experts(layer, one, adapters, shard)
            continue
        found = _module_of(layer, one)
        if found is not None:
            product, start = found
            product.adapters.append(_adapter(one, adapters, shard, start, product))


def _module_of(layer: nn.Module, one: Adapted) -> tuple[Any, int] | None:
    """The module that has a matrix and the column at which it begins there; None where no module has it."""
    modules = dict(layer.named_modules())
    is_latent = "attention.kv_up" in modules and one.module == "linear_q"
    for place in ("attention.q_up",) if is_latent else PLACES.get(one.module, ()):
        if place in modules:
            return modules[place], _start(modules[place.partition(".")[0]], one)
    return None


def _start(block: Any, one: Adapted) -> int:
    """The column at which a matrix begins in the joint product of its block."""
    if one.module in QKV and hasattr(block, "kv_heads"):
        heads = (0, block.heads, block.heads + block.kv_heads)[QKV.index(one.module)]
        return int(heads * block.qkv.weight.shape[0] // (block.heads + 2 * block.kv_heads))
    if one.module == "linear_fc1_up" and block.is_gated:
        return int(block.up.weight.shape[0] // 2)
    return 0


def _adapter(one: Adapted, adapters: Adapters, shard: Shard, start: int, product: Any) -> LowRank:
    n, k = product.weight.shape
    if one.matrix.split is Split.ROW:
        return LowRank(adapters, n, k, repeats=shard.tp)
    if one.module in (*QKV, *FC1):
        n = shard.share(one.matrix.n)
    return LowRank(adapters, n, k, ranks=product.ranks, start=start)


def _adapt_experts(layer: Any, one: Adapted, adapters: Adapters, shard: Shard) -> None:
    experts = layer.experts
    weights = experts.down if one.matrix.split is Split.ROW else experts.up
    groups = experts.num_local if one.module == EACH else 1
    made = LowRankExperts(adapters, groups, weights.shape[2], weights.shape[1])
    setattr(experts, "down_adapter" if one.matrix.split is Split.ROW else "up_adapter", made)
