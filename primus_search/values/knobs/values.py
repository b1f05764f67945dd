"""The words of choices and modules, as the enumerations whose members a table's columns hold."""

from enum import IntEnum, IntFlag


class Fp8(IntEnum):
    """Low-precision recipe of the linear layers' GEMMs; `NONE` is BF16 throughout.

    HYBRID is per-tensor current scaling (E4M3 forward, E5M2 gradients), DELAYED per-tensor with an amax history,
    BLOCKWISE 1x128 / 128x128 scales, ROWWISE one scale per row, MXFP8, MXFP4 and NVFP4 the OCP / NVIDIA block formats.
    """

    NONE = 0
    HYBRID = 1
    DELAYED = 2
    BLOCKWISE = 3
    ROWWISE = 4
    MXFP8 = 5
    NVFP4 = 6
    MXFP4 = 7


class Recompute(IntFlag):
    """What is recomputed in backward. Modules combine; FULL recomputes whole layers (see `recompute_num_layers`).

    CORE_ATTENTION is Megatron's `selective`; OP_SAC is torchtitan's per-op selective checkpointing (SDPA outputs and
    every second matmul are kept); with OP_SAC_EXPERTS beside it products of routed experts are kept, too. MOE is a
    whole MoE layer behind its norm, router and exchange included; MLP the dense one alone. HYPER_CONNECTIONS are the
    residual streams of all layers of a virtual stage, of whose first its input is kept.
    """

    NONE = 0
    CORE_ATTENTION = 1
    MLA_UP_PROJ = 2
    MLP = 4
    MOE_ACTIVATION = 8
    LAYERNORM = 16
    OP_SAC = 32
    FULL = 64
    OP_SAC_EXPERTS = 128
    MOE = 256
    SHARED_EXPERTS = 512
    HYPER_CONNECTIONS = 1024


class Offload(IntFlag):
    """Modules of every layer whose inputs wait in host memory for backward (Megatron-Core's `offload_modules`).

    LAYER_INPUT: the inputs that full recompute keeps (torchtune's and TRL's activation offloading).
    """

    NONE = 0
    ATTN_NORM = 1
    QKV_LINEAR = 2
    CORE_ATTN = 4
    ATTN_PROJ = 8
    MLP_NORM = 16
    EXPERT_FC1 = 32
    MOE_ACT = 64
    LAYER_INPUT = 128


class RecomputeMethod(IntEnum):
    """How FULL recompute picks layers: UNIFORM keeps each group's input, BLOCK takes the first layers of a stage."""

    UNIFORM = 0
    BLOCK = 1


class Sharding(IntEnum):
    """What is sharded over data-parallel ranks: nothing, optimizer state (ZeRO-1), + gradients, or all three.

    HSDP shards inside groups of ranks and replicates across them. MEGATRON_FSDP shards what FSDP2 does, by code of
    Megatron's own that takes expert parallelism and tied embeddings.
    """

    NONE = 0
    DISTRIBUTED_OPTIMIZER = 1
    ZERO2 = 2
    FSDP2 = 3
    HSDP = 4
    MEGATRON_FSDP = 5


class GroupedGemm(IntEnum):
    """Experts of a rank as one grouped kernel (TURBO) or one GEMM after another (LEGACY)."""

    TURBO = 0
    LEGACY = 1


class CudaGraph(IntEnum):
    """What is captured as a CUDA graph and replayed without host launches, each member more than the one before.

    ROUTER router and preparation of MoE layers; PARTIAL attention, norms and residuals as well; FULL forward and
    backward of the whole iteration.
    """

    NONE = 0
    ROUTER = 1
    PARTIAL = 2
    FULL = 3


class CpComm(IntEnum):
    """How context-parallel ranks exchange keys and values; STACK as the software does by default.

    A2A4_P2P: an all-to-all among 4 neighbouring ranks, a ring between such groups (Megatron-LM: a2a+p2p).
    """

    STACK = 0
    P2P = 1
    A2A = 2
    ALL_GATHER = 3
    A2A2_P2P = 4
    A2A4_P2P = 5
    A2A8_P2P = 6
    A2A16_P2P = 7

    @property
    def inner_ranks(self) -> int:
        """Ranks of the all-to-all inside a ring; 0 for an exchange of one kind."""
        return {CpComm.A2A2_P2P: 2, CpComm.A2A4_P2P: 4, CpComm.A2A8_P2P: 8, CpComm.A2A16_P2P: 16}.get(self, 0)


class DispatchBackend(IntEnum):
    """Kernels of fused expert dispatch; STACK those of the software.

    DEEPEP waits on the host for token counts and has room for what a device routes; HYBRIDEP keeps counts on the device
    and has room for every token of the group.
    """

    STACK = 0
    DEEPEP = 1
    HYBRIDEP = 2


class Optimizer(IntEnum):
    """What updates the weights.

    SGD            one momentum             MUON  one momentum per matrix, orthogonalised; ends and norms by Adam
    DIST_MUON      Muon whose matrices are owned whole by one replica each (Megatron's layer-wise distributed optimizer)
    ADAPTIVE_MUON  Muon with a second moment        LION  one momentum per matrix; ends and norms by Adam
    """

    ADAM = 0
    SGD = 1
    MUON = 2
    DIST_MUON = 3
    ADAPTIVE_MUON = 4
    LION = 5


class StateFormat(IntEnum):
    """Number formats of gradients, weights and optimizer state; STACK those of the software.

    BF16_MOMENTS    both Adam moments in BF16        BF16_STATE  moments and accumulated gradients in BF16
    BF16_REDUCTION  gradients kept and reduced in BF16
    BF16_ALL        everything in BF16, without FP32 master weights
    FP32_ALL        weights, gradients and moments in FP32; the weights are their own masters
    """

    STACK = 0
    BF16_MOMENTS = 1
    BF16_STATE = 2
    BF16_REDUCTION = 3
    BF16_ALL = 4
    FP32_ALL = 5


USUAL_SCHEDULES = ("1f1b", "interleaved")
"""Schedules that every framework has."""

PARALLEL = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""What the degrees split, as the field and its logs name it: `tensor_parallelism`, `tensor_model_parallel_size`."""
