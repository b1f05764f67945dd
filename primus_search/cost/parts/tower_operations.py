"""Vision towers on the first stage: patch embedding, encoder layers, projector, for the images of a micro-batch.

An encoder layer runs the kernels of a dense decoder layer on the patches of an image, with attention in both
directions. Its products are BF16 whatever the candidate's precision, its layers are not recomputed, and every
context-parallel rank encodes all images of its micro-batch (Megatron-Bridge's Qwen3-VL). Heads are split by tensor
parallelism where it divides them, without sequence parallelism: one all-reduce behind each block.
A frozen tower runs forward alone.
Source: NVIDIA-NeMo/Megatron-Bridge models/qwen_vl (the vision model on the first pipeline stage); widths of
transformers' modules. Valid: not yet compared with a measurement.
"""

from dataclasses import replace

import numpy as np

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.collectives import Group, all_reduce_s
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import mlp_operations, norm_operations, projections
from primus_search.cost.parts.mixer_operations import attention_family
from primus_search.cost.parts.operations import Call, LinearOp, Module, Operation, Part, Pass, Work, tallied
from primus_search.values.candidates import Candidates, Floats, Fp8
from primus_search.values.job import Job
from primus_search.values.machine.stack import UNFUSED
from primus_search.values.model import Tower, encoder_model


def flops_per_token(job: Job) -> float:
    """Model FLOPs per trained token: the language model's over the document that a token sees, and the towers' for the
    image tokens among them."""
    work = job.workload
    seen = min(round(work.document_length) or work.seq_length, work.seq_length)
    images = work.image_tokens / work.seq_length
    of_towers = sum(t.flops_per_token(t.patches(work)) * (3.0 if t.is_trained else 1.0) for t in job.model.towers)
    return job.model.flops_per_token(seen) + images * of_towers


def tower_work(job: Job, c: Candidates, *, shares_rows: bool) -> Work:
    """Seconds and kernels of all towers per micro-batch, all of it in the part TOWER."""
    total: Work | None = None
    for tower in job.model.towers:
        work = _encoder(job, tower, c, shares_rows).plus(_ends(job, tower, c, shares_rows))
        total = work if total is None else total.plus(work)
    assert total is not None
    seconds = np.zeros_like(total.seconds)
    seconds[:, Part.TOWER] = total.seconds.sum(axis=1)
    return replace(total, seconds=seconds)


def _encoder(job: Job, tower: Tower, c: Candidates, shares_rows: bool) -> Work:
    """All encoder layers: one priced, times their number."""
    model, stack, acc, patches = encoder_model(tower), job.stack, job.accelerator, tower.patches(job.workload)
    ranks = tower.ranks(c.tp)
    own = replace(c, tp=ranks, fp8=np.full_like(c.fp8, int(Fp8.NONE)))
    tokens: Floats = c.micro_batch_size * np.float64(job.workload.image_tokens * tower.merge)
    s = Share.of(job, c).replaced(tokens=tokens, split_tokens=tokens, kv_heads=tower.num_heads / ranks)
    kernel = attention_family(acc, stack, model)
    times = attention_s(
        acc,
        kernel,
        batch=tokens / patches,
        heads=tower.num_heads / ranks,
        kv_heads=tower.num_heads / ranks,
        seq_q=patches,
        seq_kv=patches,
        qk_dim=tower.head_dim,
        v_dim=tower.head_dim,
        causal=False,
    )
    rate = stack.efficiencies.attention_efficiency * acc.training_rate
    seconds = (times.forward_s / rate, times.backward_s / rate)
    core = Call(Part.ATTENTION, Module.CORE, seconds, kernels=(6.0, 9.0) if kernel == UNFUSED else (1.0, 3.0))
    reduce_s = 2.0 * all_reduce_s(job.network, tokens * tower.hidden * BF16_BYTES, Group(ranks, np.ones_like(ranks)))
    reduce_s = reduce_s / stack.efficiencies.network_efficiency
    joins = Call(Part.TENSOR_COMM, Module.COMM, (reduce_s, reduce_s))
    layer = [
        *norm_operations(model, stack, s),
        *projections(model, stack, own, s),
        core,
        *mlp_operations(model, stack, own, s, tower.ffn_hidden),
        joins,
    ]
    return _times(tallied(job, layer, c, shares_rows=shares_rows), tower.num_layers, tower.is_trained)


def _ends(job: Job, tower: Tower, c: Candidates, shares_rows: bool) -> Work:
    """Patch embedding and projector, on every tensor-parallel rank alike."""
    tokens = c.micro_batch_size * float(job.workload.image_tokens)
    part, module = Part.EMBEDDING_AND_HEAD, Module.LINEAR
    shapes = [(tower.merge, tower.hidden, tower.patch_inputs), *((1, n, k) for n, k in tower.projector)]
    ops: list[Operation] = [LinearOp(part=part, module=module, m=tokens * m, n=n, k=k) for m, n, k in shapes]
    return _times(tallied(job, ops, c, shares_rows=shares_rows), 1, tower.is_trained)


def _times(work: Work, count: int, is_trained: bool) -> Work:
    """So many of it, without backward passes where it is frozen."""
    passes = np.array([count * (is_trained or p is Pass.FORWARD) for p in Pass], dtype=np.float64)
    return Work(
        seconds=work.seconds * passes[:, None, None],
        forward_module_s=work.forward_module_s * count,
        core_backward_s=work.core_backward_s * passes[Pass.INPUT_GRAD],
        kernels=work.kernels * passes[:, None, None],
    )
