"""What one device holds of one layer: the sizes a candidate gives to the modules. No torch here."""

from dataclasses import dataclass, replace
from typing import Literal

from primus_search.values.candidates import Candidates, Fp8, GroupedGemm, Recompute
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model
from primus_search.values.workload import Workload

COUNTED_BYTES = 2.0  # bytes per element as the cost model counts activations

DtypeName = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The knobs of a candidate that change the shape of a layer's work on one device.

    seq_length is the whole sequence; `context_seq` is this device's part of it, `resident_seq` the part that norms,
    residuals and the router see (a tensor-parallel share of it under sequence parallelism).
    Two habits of frameworks change what a layer holds, not what it computes: `keeps_value_view`, values stay a view of
    the joint projection and keep all of it alive; `weights_at_combine`, routing weights multiply the experts' outputs,
    which are kept for that, instead of their activations. `keeps_fp8_activations`: see the stack number of that name.
    shares_attention_output: likewise, unless FP8 has delayed scaling.
    exchanges_heads: context parallelism exchanges tokens for heads before attention and back behind it.
    rows_over_mean: rows that experts have room for, over those of balanced routing.
    """

    micro_batch_size: int
    seq_length: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    fp8: Fp8 = Fp8.NONE
    recompute: Recompute = Recompute.NONE
    expert_kernel: GroupedGemm = GroupedGemm.TURBO
    has_fused_loss: bool = True
    dtype: DtypeName = "bfloat16"
    keeps_value_view: bool = False
    weights_at_combine: bool = False
    keeps_fp8_activations: bool = False
    shares_attention_output: bool = False
    exchanges_heads: bool = False
    rows_over_mean: float = 1.0

    @classmethod
    def of(cls, candidates: Candidates, row: int, workload: Workload, dtype: DtypeName = "bfloat16") -> "Shard":
        """The shard of one row of a table."""
        c = {name: column[row].item() for name, column in candidates.columns().items()}
        return cls(
            **{name: c[name] for name in ("micro_batch_size", "tp", "cp", "ep", "etp", "sequence_parallel")},
            seq_length=workload.seq_length,
            fp8=Fp8(c["fp8"]),
            recompute=Recompute(c["recompute"]),
            expert_kernel=GroupedGemm(c["grouped_gemm"]),
            has_fused_loss=c["loss_fusion"],
            dtype=dtype,
        )

    def as_kept_by(
        self,
        model: Model,
        stack: Stack,
        *,
        has_fused_dispatch: bool,
        exchanges_heads: bool = False,
        rows_over_mean: float = 1.0,
    ) -> "Shard":
        """This shard with the habits of a software stack and the rows of its busiest experts, for traces."""
        copies = stack.memory.deepep_expert_copies if has_fused_dispatch else stack.memory.expert_copies
        keeps_joint = stack.memory.keeps_fused_qkv and model.latent is None and not model.learned_positions
        fp8 = self.fp8 if stack.memory.saves_fp8_inputs else Fp8.NONE
        return replace(
            self,
            keeps_value_view=keeps_joint,
            weights_at_combine=copies > 0,
            fp8=fp8,
            keeps_fp8_activations=stack.memory.keeps_fp8_activations,
            shares_attention_output=stack.memory.shares_attention_output and fp8 != Fp8.DELAYED,
            exchanges_heads=exchanges_heads,
            rows_over_mean=rows_over_mean,
        )

    @property
    def context_seq(self) -> int:
        """Tokens of each sequence on this context-parallel rank."""
        return _split(self.seq_length, self.cp)

    @property
    def sequence_ranks(self) -> int:
        """Ranks among which sequence parallelism deals the tokens of norms and residuals; 1 without it."""
        return self.tp if self.sequence_parallel else 1

    @property
    def resident_seq(self) -> int:
        """Tokens of each sequence that norms and residuals of this rank see."""
        return _split(self.context_seq, self.sequence_ranks)

    def rows_per_expert(self, model: Model) -> int:
        """Rows one local expert has, at least one: those of every rank of its tensor-parallel group.

        Formula: f * t * K * ep * etp / E, f rows over those of balanced routing, t tokens resident on each of the
            ep * etp ranks that share the experts.
        """
        return max(1, round(self.rows_over_mean * self._copies(model) * self.etp))

    def returned_per_expert(self, model: Model) -> int:
        """Rows of one local expert's output that come back to this rank's tokens, at least one: balanced, summed over
        the ranks of its tensor-parallel group, which has each of them whole.

        Formula: t * K * ep / E.
        """
        return max(1, round(self._copies(model)))

    def _copies(self, model: Model) -> float:
        """Token copies that one rank of an expert's tensor-parallel group has for one local expert, on average.

        Experts work on tokens that are split over tensor parallelism whether or not residuals are.
        """
        assert model.moe is not None
        tokens = self.micro_batch_size * _split(self.context_seq, self.tp)
        return tokens * model.moe.top_k * self.ep / model.moe.num_experts

    def local_experts(self, model: Model) -> int:
        assert model.moe is not None
        return _split(model.moe.num_experts, self.ep)

    def share(self, whole: int) -> int:
        """Heads or channels on one tensor-parallel rank; replicated where there are fewer than ranks."""
        return _split(whole, self.tp)


def _split(whole: int, parts: int) -> int:
    """The largest share when `whole` is dealt to `parts`, at least one."""
    return max(1, -(-whole // parts))
