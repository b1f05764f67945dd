"""The routed experts of one rank under balanced routing: router, permutation, grouped GEMMs, un-permutation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from primus_search.measure.modules.fused_operations import DiscardedOutput, combine, swiglu, weighted_gelu
from primus_search.measure.modules.products import Linear, fp8_grouped, grouped_product
from primus_search.measure.modules.shard import Shard
from primus_search.values.candidates import Fp8, GroupedGemm, Recompute
from primus_search.values.model import Model


class ExpertMlp(nn.Module):
    """Router, top-k, dispatch to this rank's experts, their MLPs, combine.

    Each rank of an expert-parallel group receives as many token copies as it sends when routing is balanced, so one
    rank alone can stand for the group: it feeds its own t*K permuted copies (once per expert-tensor-parallel rank) to
    its own experts. Rows that do not divide by the experts are dropped or repeated, as a capacity would. The ranks of
    an expert's tensor-parallel group add up their outputs and each keeps the rows it sent (reduce-scatter), so that
    only those meet the routing weights and the tokens: Megatron-Core transformer/moe/token_dispatcher.py,
    combine_preprocess.
    """

    def __init__(self, model: Model, shard: Shard) -> None:
        super().__init__()
        assert model.moe is not None
        self.moe, self.is_gated, self.etp = model.moe, model.is_gated, shard.etp
        self.num_local, self.rows = shard.local_experts(model), shard.rows_per_expert(model)
        self.returned = min(self.rows, shard.returned_per_expert(model))
        self.is_looped = shard.expert_kernel == GroupedGemm.LEGACY
        self.discards = bool(shard.recompute & Recompute.MOE_ACTIVATION)
        self.fp8, self.weights_at_combine = shard.fp8, shard.weights_at_combine
        self.keeps_cast = shard.keeps_fp8_activations
        ffn = max(1, -(-model.moe.expert_ffn_hidden // shard.etp))
        hidden, width = model.expert_hidden, ffn * (2 if model.is_gated else 1)
        self.exchange: Callable[[Tensor], Tensor] | None = None  # real all-to-all, where there are real ranks
        self.router = nn.Parameter(torch.randn(model.moe.num_experts, model.hidden) * model.hidden**-0.5)
        self.into = Linear(model.hidden, hidden) if model.moe.latent_hidden else None
        self.back = Linear(hidden, model.hidden) if model.moe.latent_hidden else None
        self.up = nn.Parameter(torch.randn(self.num_local, hidden, width) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(self.num_local, ffn, hidden) * ffn**-0.5)
        self.up_adapter: nn.Module | None = None
        self.down_adapter: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weights, _ = self._route(tokens)
        if self.into is not None:
            tokens = self.into(tokens)
        slots = self._balanced_slots(weights.numel(), self.rows, x.device)
        copies = tokens.index_select(0, slots // self.moe.top_k).view(self.num_local, self.rows, -1)
        back = slots if self.returned == self.rows else self._balanced_slots(weights.numel(), self.returned, x.device)
        row_weights = weights.flatten().index_select(0, back if self.weights_at_combine else slots)
        row_weights = row_weights.view(self.num_local, -1, 1)
        if self.weights_at_combine:
            out = self._own(self._experts(copies, None)) * row_weights.to(copies.dtype)
        elif self.exchange is None:
            out = self._own(self._experts(copies, row_weights))
        else:
            out = self.exchange(self._experts(self.exchange(copies), self.exchange(row_weights)))
        joined = combine(out.flatten(0, 1), back // self.moe.top_k, tokens.shape[0])
        return (joined if self.back is None else self.back(joined)).view(x.shape)

    def _own(self, out: Tensor) -> Tensor:
        """Of the rows of a tensor-parallel group, and of those that experts have room for, the ones sent from here."""
        return out if self.returned == self.rows else out[:, : self.returned].clone()

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Routing weights (fp32, [tokens, K]) and the experts chosen."""
        scores = torch.softmax(F.linear(tokens, self.router).float(), dim=-1)
        chosen, experts = scores.topk(self.moe.top_k, dim=-1)
        return chosen / chosen.sum(-1, keepdim=True), experts

    def _balanced_slots(self, slots: int, rows: int, device: torch.device) -> Tensor:
        """Which of the tokens x K routing slots each expert row takes: round robin, as many for every expert."""
        return torch.arange(self.num_local * rows, device=device) % slots

    def _experts(self, copies: Tensor, weights: Tensor | None) -> Tensor:
        if not self.is_looped:
            return self._one(copies, self.up, self.down, weights)
        parts = []
        for expert in range(self.num_local):
            one = slice(expert, expert + 1)
            own = None if weights is None else weights[one]
            parts.append(self._one(copies[one], self.up[one], self.down[one], own))
        return torch.cat(parts)

    def _one(self, copies: Tensor, up: Tensor, down: Tensor, weights: Tensor | None) -> Tensor:
        wide = self._product(copies, up, self.up_adapter)
        if not self.discards:
            return self._product(self._activate(wide, weights), down, self.down_adapter)
        owner = DiscardedOutput()
        hidden = owner.run(self._activate, wide) if weights is None else owner.run(self._activate, wide, weights)
        out = self._product(hidden, down, self.down_adapter)
        owner.discard_until_backward_of(out)
        return out

    def _product(self, rows: Tensor, weights: Tensor, adapter: nn.Module | None) -> Tensor:
        if self.fp8 == Fp8.NONE:
            out = grouped_product(rows, weights)
        else:
            out = fp8_grouped(rows, weights, self.fp8, keeps_cast=self.keeps_cast)
        return out if adapter is None else out + adapter(rows)

    def _activate(self, wide: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.is_gated:
            return swiglu(wide, weights)
        return F.gelu(wide) if weights is None else weighted_gelu(wide, weights)
