"""One measured run as something to project: model, cluster with its stack, workload and a table of one candidate.

Nothing is looked up by model name except what no column says (MLA sizes, sliding windows, MTP, biases): those follow
from the family, and a family nobody knows is treated as the plain case. A run that lacks a needed value is skipped
with the reason, never guessed.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from primus_search.candidates import Candidates, GroupedGemm, Recompute, RecomputeMethod, Sharding, degrees
from primus_search.cluster import Cluster
from primus_search.declare.hardware import Hardware, load_hardware, load_stack, on_fewer_gpus
from primus_search.errors import InputError
from primus_search.layout import BALANCED, EVEN, Layout, stage_layers
from primus_search.model import LatentAttention, MixtureOfExperts, Model
from primus_search.network import Network
from primus_search.stack import Stack
from primus_search.validate import words
from primus_search.validate.rows import Run
from primus_search.workload import Workload


class Skipped(Exception):
    """Why a run cannot be projected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that can be projected, and the keys it is scored under."""

    run: Run
    model: Model
    cluster: Cluster
    workload: Workload
    candidates: Candidates

    @property
    def group(self) -> tuple[str, str]:
        """What is left out together: source and model."""
        return self.run.word("source"), self.run.word("model")

    @property
    def duplicate_key(self) -> tuple[object, ...]:
        """Runs with the same key are near-duplicates (releases, weak-scaling ladders) and count once."""
        r = self.run
        shape = tuple(r.number(name) for name in ("tp", "pp", "cp", "ep", "mbs"))
        return (r.word("model"), r.word("gpu"), *shape, r.word("precision"))

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """As measured."""
        value = self.run.number("tokens_per_s_per_gpu")
        assert value is not None
        return value


def build_case(run: Run) -> Case:
    """The case of a run. Raises `Skipped` with the reason."""
    if not run.is_complete:
        raise Skipped("marked incomplete")
    if not (run.number("tokens_per_s_per_gpu") or 0.0) > 0.0:
        raise Skipped("no measured tokens/s/GPU")
    model = build_model(run)
    hardware, stack = build_hardware(run), build_stack(run)
    cluster = build_cluster(run, hardware, stack)
    candidates = build_candidates(run, model, stack)
    seq, batch = count(run, "seq_len"), count(run, "gbs")
    workload = Workload(seq_length=seq, global_batch_size=batch, routing_imbalance=_imbalance(run, stack))
    d = degrees(candidates, world=cluster.world, global_batch_size=batch)
    if not d.is_whole[0]:
        raise Skipped(f"{cluster.world} GPUs and global batch {batch} do not divide by the degrees given")
    stages = int(candidates.pp[0] * candidates.vpp[0])
    if stage_layers(model, stages, candidates.layouts[0]) is None:
        raise Skipped(f"{model.num_layers} layers cannot be dealt to {stages} virtual stages")
    return Case(run=run, model=model, cluster=cluster, workload=workload, candidates=candidates)


def count(run: Run, name: str, default: int | None = None) -> int:
    """A count of at least 1 that the run must have."""
    value = run.whole(name, default)
    if value is None or value < 1:
        raise Skipped(f"{name} is missing or not a whole number of at least 1")
    return value


# --- model ---------------------------------------------------------------------------------------------------------


def build_model(run: Run) -> Model:
    """The transformer of a run. Gated or not, tied or not: whichever agrees with the published parameter count."""
    name = run.word("model")
    text = f"{name} {run.word('notes')}".lower()
    hidden, heads = count(run, "hidden"), count(run, "heads")
    layers = count(run, "num_layers")
    vocab = run.whole("vocab") or 0
    is_old = bool(re.search(r"gpt-?[0-9.]|^mpt|nemotron", name.lower())) and "oss" not in name.lower()
    experts = _experts(run)
    dense = run.whole("first_dense_layers", 0) or 0
    plain = Model(
        name=name,
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=run.whole("ffn_hidden") or 4 * hidden,
        num_heads=heads,
        num_kv_heads=run.whole("kv_heads", heads) or heads,
        head_dim=run.whole("head_dim") or hidden // heads,
        vocab_size=vocab or DEFAULT_VOCABULARY,
        latent=_latent(run, hidden),
        moe=experts,
        moe_layers=[experts is not None and i >= dense for i in range(layers)],
        windows=[128 if "gpt-oss" in text and i % 2 == 0 else 0 for i in range(layers)],
        norm="layernorm" if is_old else "rmsnorm",
        has_linear_bias=is_old and "nemotron" not in text,
        has_qkv_bias="qwen2" in text,
        has_qk_norm="qwen3" in text,
        learned_positions=_positions(run) if is_old and "nemotron" not in text else 0,
        num_mtp_layers=_mtp(run),
        source=run.word("source"),
    )
    return _closest(plain, run.number("params_b"), prefers_gate=not is_old)


DEFAULT_VOCABULARY = 50304
"""GPT-2's vocabulary padded to 128, where a GPT run does not print its own (Zero Bubble: "about 50k")."""


AGREES = 0.01
"""A parameter count this close to the published one settles which variant of a model it is."""


def _closest(plain: Model, params_b: float | None, *, prefers_gate: bool) -> Model:
    variants = [
        replace(plain, is_gated=gated, is_tied=tied)
        for gated in (prefers_gate, not prefers_gate)
        for tied in (not prefers_gate, prefers_gate)
    ]
    if params_b is None:
        return variants[0]
    errors = []
    for variant in variants:
        errors.append(round(abs(variant.total_params / 1e9 / params_b - 1.0), 2))
        if errors[-1] < AGREES:
            break
    return variants[errors.index(min(errors))]


def _experts(run: Run) -> MixtureOfExperts | None:
    experts = run.whole("num_experts", 0) or 0
    if experts < 2:
        return None
    inner = count(run, "moe_ffn")
    return MixtureOfExperts(
        num_experts=experts,
        top_k=count(run, "topk"),
        expert_ffn_hidden=inner,
        shared_ffn_hidden=(run.whole("shared_experts", 0) or 0) * inner,
    )


def _latent(run: Run, hidden: int) -> LatentAttention | None:
    """DeepSeek's sizes, which every published MLA model shares; small ones do not compress queries."""
    if not run.whole("mla", 0):
        return None
    return LatentAttention(
        q_lora_rank=1536 if hidden > 2048 else 0,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


def _mtp(run: Run) -> int:
    """MTP modules: DeepSeek-V3 as NVIDIA's recipes train it; a layout string says so with an m."""
    layout = words.setting(run.word("flags"), "pp_layout")
    if layout is not None:
        return layout.count("m")
    is_v3 = re.search(r"deepseek-?v3$", run.word("model").lower())
    return 1 if is_v3 and re.search("nvidia", run.word("source").lower()) else 0


def _positions(run: Run) -> int:
    return run.whole("seq_len") or 0


# --- machine and stack -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _hardware(name: str) -> Hardware:
    return load_hardware(name)


@lru_cache(maxsize=64)
def _stack(name: str) -> Stack:
    return load_stack(name)


def build_hardware(run: Run) -> Hardware:
    """The hardware file of a run's GPU; variants that notes describe (memory, power cap) have files of their own."""
    gpu = run.word("gpu").lower().replace(" (gcd)", "")
    name = words.HARDWARE.get(gpu)
    if name is None:
        raise Skipped(f"no hardware file for GPU {run.word('gpu')!r}")
    if name == "h100" and re.search(r"96 ?gb", run.word("notes").lower()):
        name = "h100_96gb"
    try:
        return _hardware(name)
    except InputError as error:
        raise Skipped(f"hardware {name}: {error.problems[0].what}") from None


def build_cluster(run: Run, hardware: Hardware, stack: Stack) -> Cluster:
    """As many nodes as the run had GPUs; a run on part of one node has a smaller node."""
    gpus = count(run, "gpus")
    network = _fabric(run, hardware.network)
    if gpus < network.gpus_per_node:
        return Cluster(accelerator=hardware.accelerator, network=on_fewer_gpus(network, gpus), stack=stack, num_nodes=1)
    if gpus % network.gpus_per_node:
        raise Skipped(f"{gpus} GPUs are no whole number of nodes of {network.gpus_per_node}")
    nodes = gpus // network.gpus_per_node
    return Cluster(accelerator=hardware.accelerator, network=network, stack=stack, num_nodes=nodes)


def _fabric(run: Run, network: Network) -> Network:
    """The network with the NICs a run says it had: `4x100Gb RoCE/node`, or a total per node."""
    text = f"{run.word('flags')} {run.word('source')}"
    per_nic = re.search(r"(\d+)x(\d+) ?Gb", text)
    if per_nic:
        nics, gbit = int(per_nic.group(1)), float(per_nic.group(2))
        return replace(network, nics_per_node=nics, nic_bytes_per_s=gbit * 1e9 / 8.0)
    total = re.search(r"(?:inter-node|with) (\d{3,4}) ?Gbps", text)
    if total:
        rate = float(total.group(1)) * 1e9 / 8.0 / network.nics_per_node
        return replace(network, nic_bytes_per_s=rate, pod_bytes_per_s=min(rate, network.pod_bytes_per_s))
    return network


def build_stack(run: Run) -> Stack:
    """The stack of a run's source, with the switches its flags name."""
    flags = run.word("flags")
    name = words.stack_name(run.word("source"), flags, run.word("gpu"))
    try:
        stack = _stack(name)
    except InputError as error:
        raise Skipped(f"stack {name}: {error.problems[0].what}") from None
    return switched(stack, run)


def switched(stack: Stack, run: Run) -> Stack:
    """The stack with what a run's flags switch on or off."""
    flags, text = run.word("flags"), run.word("flags").lower()
    graph = (words.setting(flags, "cuda_graph") or "").lower()
    if "full_iteration" in graph:
        stack = replace(stack, cuda_graph="full" if not graph.startswith("none") else stack.cuda_graph)
    elif "attn" in graph:
        stack = replace(stack, cuda_graph="partial")
    elif "moe_router" in graph:
        stack = replace(stack, cuda_graph="router")
    elif "cuda graph" in text:
        stack = replace(stack, cuda_graph="full")
    if "a2a_overlap=true" in text:
        stack = replace(stack, expert_overlap=stack.batch_expert_overlap)
    if "cp_comm=a2a" in text:
        stack = replace(stack, cp_comm="a2a")
    if "tp_comm_overlap" in text or "tp overlap" in text or "tp comm overlap" in text or "asynctp" in text:
        stack = replace(stack, tensor_overlap=stack.switched_tensor_overlap)
    if "mixed_precision=pure" in text:
        stack = replace(
            stack, gradient_bytes=2.0, gradient_comm_bytes=2.0, master_weight_bytes=0.0, moment_bytes=2.0,
            memory=replace(stack.memory, weight_bytes=2.0, sharded_gradient_bytes=2.0),
        )  # fmt: skip
    if "precision-aware" in text:
        stack = replace(stack, gradient_bytes=2.0, moment_bytes=2.0)
    if "no compile" in text:
        stack = replace(
            stack, has_fused_norm=False, has_fused_activation=False, has_fused_rope=False, has_fused_residual=False
        )
    return stack


def _imbalance(run: Run, stack: Stack) -> float:
    text = f"{run.word('flags')} {run.word('notes')}".lower()
    return stack.natural_imbalance if re.search(r"natural routing|real routing", text) else 1.0


# --- candidate -------------------------------------------------------------------------------------------------------

_SHARDING = (
    (r"zero2|no reshard", Sharding.ZERO2),
    (r"hsdp", Sharding.HSDP),
    (r"fsdp|zero3", Sharding.FSDP2),
    (r"zero1|dist", Sharding.DISTRIBUTED_OPTIMIZER),
    (r"^(none|ddp|no|)$", Sharding.NONE),
)


def build_candidates(run: Run, model: Model, stack: Stack) -> Candidates:
    """The configuration of a run as a table of one row."""
    text = run.word("flags").lower()
    vpp = count(run, "vpp", 1)
    pp = count(run, "pp", 1)
    name = words.schedule(run.word("schedule"), vpp)
    if name is None:
        raise Skipped(f"schedule {run.word('schedule')!r} is not known")
    fp8 = words.precision(run.word("precision"))
    if fp8 is None:
        raise Skipped(f"precision {run.word('precision')!r} is not known")
    recompute, layers = _recompute(run, model, pp * vpp)
    rungs = words.ladder(run.word("flags"))
    tp = count(run, "tp", 1)
    layout = _layout(run, model, pp * vpp)
    sharding = _sharding(run)
    has_deepep = bool(re.search(r"deepep|hybridep", text)) and "deepep" not in _absent(text)
    return Candidates.table(
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=count(run, "ep", 1),
        etp=_etp(run),
        cp=count(run, "cp", 1),
        micro_batch_size=count(run, "mbs"),
        deepep=has_deepep or "deepep" in rungs,
        sync_free_stage=_sync_free(text, rungs),
        fp8=int(fp8),
        recompute=int(recompute),
        recompute_num_layers=layers,
        recompute_method=int(RecomputeMethod.BLOCK if layers else RecomputeMethod.UNIFORM),
        sharding=int(sharding),
        shard_group=_shard_group(run, sharding),
        loss_fusion=words.fused_loss(run.word("source"), run.word("model"), run.word("flags"), stack.has_fused_loss),
        overlap_grad_reduce="no tp/p2p/grad overlap" not in text,
        grouped_gemm=int(GroupedGemm.LEGACY if "legacy grouped" in text else GroupedGemm.TURBO),
        sequence_parallel=run.word("sequence_parallel").lower() == "yes" and tp > 1,
        offload_layers=int(words.setting(run.word("flags"), "cpu_offload_layers") or 0) // (pp * vpp),
        schedules=(name,),
        layouts=(layout,),
    )


def _absent(text: str) -> str:
    return "deepep" if re.search(r"no deepep|without deepep|deepep=false|deepep off", text) else ""


def _recompute(run: Run, model: Model, stages: int) -> tuple[Recompute, int]:
    found = words.recompute(run.word("recompute"))
    if found is None:
        raise Skipped(f"recompute {run.word('recompute')!r} is not known")
    flags, layers = found
    per_stage = -(-layers // 1)
    if flags is Recompute.FULL and layers and layers >= model.num_layers:
        return flags, 0
    return flags, per_stage


def _etp(run: Run) -> int:
    value = run.whole("etp", 0)
    return value if value else 1


def _sharding(run: Run) -> Sharding:
    text = run.word("fsdp").lower()
    for pattern, sharding in _SHARDING:
        if re.search(pattern, text):
            return sharding
    raise Skipped(f"fsdp {run.word('fsdp')!r} is not known")


def _shard_group(run: Run, sharding: Sharding) -> int:
    text = run.word("flags").lower()
    group = re.search(r"zero1 group[= ](\d+)", text)
    if group:
        return int(group.group(1))
    if sharding is Sharding.HSDP:
        return run.whole("gpus_per_node", 8) or 8
    return 0


def _sync_free(text: str, rungs: set[str]) -> int:
    stage = re.search(r"sync[-_ ]?free(?:[-_ ]?stage)?[ =]?(\d)", text)
    if stage:
        return int(stage.group(1))
    return 1 if "sync-free" in rungs else 0


def _layout(run: Run, model: Model, stages: int) -> Layout:
    text = words.setting(run.word("flags"), "pp_layout")
    if text:
        return Layout("string", text=text)
    if stages == 1 or model.num_layers % stages == 0:
        return EVEN
    most = -(-model.num_layers // stages)
    rest = model.num_layers - (stages - 1) * most
    if model.num_mtp_layers and rest >= 0:
        # Megatron-Bridge deals DeepSeek-V3 so: full stages, and what is left to the one with MTP and loss.
        return Layout("ends", last=rest)
    if (model.num_layers + 2) % stages == 0:
        # Megatron's account_for_embedding_in_pipeline_split and its twin for the loss: each end counts as a layer.
        at_ends = (model.num_layers + 2) // stages - 1
        return Layout("ends", first=at_ends, last=at_ends)
    return BALANCED


__all__ = ["Case", "Skipped", "build_case"]
