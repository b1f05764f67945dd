"""The configuration of a measured run as a table of one candidate."""

import re

import numpy as np

from primus_search.candidates import Candidates, GroupedGemm, Recompute, RecomputeMethod, Sharding
from primus_search.layout import BALANCED, EVEN, Layout, stage_layers
from primus_search.model import Model
from primus_search.schedule import algorithm
from primus_search.stack import Stack
from primus_search.validate import words
from primus_search.validate.rows import Run, Skipped


def build_candidates(run: Run, model: Model, stack: Stack) -> Candidates:
    """The configuration of a run as a table of one row."""
    flags = run.word("flags")
    text, rungs = flags.lower(), words.ladder(flags)
    pp, vpp, tp = run.count("pp", 1), run.count("vpp", 1), run.count("tp", 1)
    schedule = _schedule(run, pp, vpp)
    vpp = _chunks(schedule, vpp) if pp > 1 else 1
    fp8 = words.precision(run.word("precision"))
    if fp8 is None:
        raise Skipped(f"precision {run.word('precision')!r} is not known")
    layout = _layout(run, model, pp * vpp)
    recompute, layers = _recompute(run, model, pp * vpp, layout)
    sharding = _sharding(run)
    return Candidates.table(
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=run.count("ep", 1),
        etp=max(run.parts("etp"), 1),
        cp=run.count("cp", 1),
        micro_batch_size=run.count("mbs"),
        deepep=words.has_deepep(text) or "deepep" in rungs or words.lists_deepep(run.word("notes").lower()),
        sync_free_stage=_sync_free(text, rungs),
        fp8=int(fp8),
        recompute=int(recompute),
        recompute_num_layers=layers,
        recompute_method=int(RecomputeMethod.BLOCK if layers else RecomputeMethod.UNIFORM),
        sharding=int(sharding),
        shard_group=_shard_group(run, sharding),
        loss_fusion=words.fused_loss(
            run.word("source"), run.word("model"), flags, stack.has_fused_loss, run.word("stack")
        ),
        overlap_grad_reduce="no tp/p2p/grad overlap" not in text,
        grouped_gemm=int(GroupedGemm.LEGACY if words.has_legacy_experts(text) else GroupedGemm.TURBO),
        sequence_parallel=run.word("sequence_parallel").lower() in ("yes", "true", "1") and tp > 1,
        offload_layers=words.offloaded_layers(flags) // (pp * vpp),
        schedules=(schedule,),
        layouts=(layout,),
    )


def _schedule(run: Run, pp: int, vpp: int) -> str:
    """The pipeline's order; without a pipeline the word does not matter."""
    name = words.schedule(run.word("schedule"), vpp)
    if name is None and pp > 1:
        raise Skipped(f"schedule {run.word('schedule')!r} is not known")
    return name or "1f1b"


def _chunks(schedule: str, vpp: int) -> int:
    """Chunks a rank holds: tables leave out the number that a schedule is defined for, two of a V."""
    defined = algorithm(schedule).virtual_stages
    return defined[0] if defined is not None and vpp == 1 else vpp


def _recompute(run: Run, model: Model, stages: int, layout: Layout) -> tuple[Recompute, int]:
    """Flags, and for FULL the number of layers of every virtual stage (0 = all)."""
    found = words.recompute(run.word("recompute"))
    if found is None:
        raise Skipped(f"recompute {run.word('recompute')!r} is not known")
    flags, layers = found
    ids = words.partial_ids(run.word("recompute")) if layers else ()
    if ids and stages > 1:
        layers = _of_every_stage(ids, model, stages, layout)
        return (flags, layers) if layers else (Recompute.NONE, 0)
    if flags is Recompute.FULL and layers >= model.num_layers:
        return flags, 0
    return flags, layers


def _of_every_stage(ids: tuple[int, ...], model: Model, stages: int, layout: Layout) -> int:
    """How many layers of every virtual stage a list of the whole model's layers names. Raises `Skipped` if they differ.

    Megatron-style knobs recompute as many layers of each stage. Where some stages recompute and others do not, neither
    the slowest nor the fullest is that of any such knob.
    """
    dealt = stage_layers(model, stages, layout)
    if dealt is None:
        raise Skipped(f"{model.num_layers} layers cannot be dealt to {stages} virtual stages")
    ends = np.cumsum(dealt.layers)
    counts = np.bincount(np.searchsorted(ends, ids, side="right"), minlength=stages)[:stages]
    if counts.min() != counts.max():
        raise Skipped(f"layers recomputed are {counts.min()} to {counts.max()} per virtual stage, which is no setting")
    return int(counts.min())


def _sharding(run: Run) -> Sharding:
    sharding = words.sharding(run.word("fsdp"))
    if sharding is None:
        raise Skipped(f"fsdp {run.word('fsdp')!r} is not known")
    return sharding


def _shard_group(run: Run, sharding: Sharding) -> int:
    group = re.search(r"zero1 group[= ](\d{1,6})", run.word("flags").lower())
    if group:
        return int(group.group(1))
    if sharding is Sharding.HSDP:
        return run.whole("gpus_per_node", 8) or 8
    return 0


def _sync_free(text: str, rungs: set[str]) -> int:
    stage = re.search(r"sync[-_ ]?free(?:[-_ ]?stage)?[ =]?([0-3])", text)
    if stage:
        return int(stage.group(1))
    return 1 if "sync-free" in rungs else 0


def _layout(run: Run, model: Model, stages: int) -> Layout:
    text = words.layout(run.word("flags"))
    if text:
        return Layout("string", text=text)
    if stages == 1 or model.num_layers % stages == 0:
        return EVEN
    most = -(-model.num_layers // stages)
    rest = model.num_layers - (stages - 1) * most
    is_recipe = words.setting(run.word("flags"), "pp_layout") == words.OF_RECIPE
    if (model.num_mtp_layers or is_recipe) and rest >= 0:
        # Megatron-Bridge deals DeepSeek-V3 and Kimi K2 so: full stages, and what is left to the one with MTP and loss
        # (recipes/kimi/kimi_k2.py, _get_kimi_k2_pipeline_layout).
        return Layout("ends", last=rest)
    if (model.num_layers + 2) % stages == 0:
        # Megatron's account_for_embedding_in_pipeline_split and its twin for the loss: each end counts as a layer.
        at_ends = (model.num_layers + 2) // stages - 1
        return Layout("ends", first=at_ends, last=at_ends)
    return BALANCED
