"""Trains one configuration for a few steps on this rank and reports what it took. Runs isolated, one process a rank.

A small GPT or MoE that really trains over torch.distributed, from the same layers that are traced and timed.

The layers in `layers.py` stand in for their collectives by shape; here the collectives are real:
tensor parallelism (identity and all-reduce around attention and MLP, vocabulary-parallel embedding and loss),
expert parallelism (all-to-all of permuted rows), context and sequence parallelism are left out.
"""

import ctypes
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import init_device_mesh

from primus_search.measure.device.device_info import LARGEST_MMAP_THRESHOLD, resident_bytes
from primus_search.measure.layer_bench import NotFiniteError, TimedPiece
from primus_search.measure.modules.fused_operations import applied, keeping_nothing
from primus_search.measure.modules.layers import Embedding, Layer, OutputHead
from primus_search.measure.modules.shard import Shard
from primus_search.measure.rank_group import FREED_FROM_BYTES, exchange, join, leave
from primus_search.values.model import MixtureOfExperts, Model


def _summed(x: Tensor) -> Tensor:
    x = x.contiguous()
    dist.all_reduce(x)
    return x


def copy_to_ranks(x: Tensor) -> Tensor:
    """Identity forward, sum over the ranks backward: what enters a column-parallel linear."""
    return keeping_nothing(lambda x: Tensor.view_as(x, x), _summed, x)


def sum_over_ranks(x: Tensor) -> Tensor:
    """Sum over the ranks forward, identity backward: what leaves a row-parallel linear."""
    return keeping_nothing(_summed, lambda grad: grad, x)


class _VocabularyLoss(Function):
    """Cross entropy of logits whose vocabulary is dealt to the ranks; overwrites them by their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, rank: int) -> Tensor:
        rows, wanted = logits.flatten(0, -2), targets.flatten()
        largest = rows.amax(dim=-1, keepdim=True)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        local = wanted - rank * rows.shape[1]
        is_mine = (local >= 0) & (local < rows.shape[1])
        index = local.clamp(0, rows.shape[1] - 1)[:, None]
        picked = torch.where(is_mine, rows.gather(1, index)[:, 0] - largest[:, 0], 0.0)
        rows.sub_(largest).exp_()
        total = rows.sum(dim=-1, keepdim=True)
        both = torch.stack([total[:, 0], picked])
        dist.all_reduce(both)
        rows.div_(both[0][:, None])
        rows.scatter_add_(1, index, -is_mine.to(rows.dtype)[:, None])
        rows.mul_(1.0 / rows.shape[0])
        ctx.save_for_backward(logits)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grads[0]), None, None


class ModelPart(nn.Module):
    """A run of layers, with the embedding before and the head and loss behind where they belong to it.

    Takes token numbers or hidden states; returns hidden states, or the loss where it holds the head.
    """

    def __init__(
        self, model: Model, shard: Shard, layers: range, *, rank: int, has_embedding: bool, has_head: bool
    ) -> None:
        super().__init__()
        self.rank, self.tp, self.is_fused = rank, shard.tp, shard.has_fused_loss
        self.embedding = Embedding(model, shard) if has_embedding else None
        self.layers = nn.ModuleList(Layer(model, shard, model.layers[i]) for i in layers)
        self.head = OutputHead(model, shard) if has_head else None
        for layer in self.layers:
            _connect(layer, shard)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.embedding is not None:
            x = self._embed(x)
        for layer in self.layers:
            x = layer(x)
        if self.head is None or targets is None:
            return x
        if self.tp == 1:
            loss: Tensor = self.head(x, targets)
            return loss
        logits = self.head.out(copy_to_ranks(self.head.norm(x)))
        return applied(_VocabularyLoss, logits, targets, self.rank)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None
        if self.tp == 1:
            whole: Tensor = self.embedding(tokens)
            return whole
        local = tokens - self.rank * self.embedding.rows
        is_mine = (local >= 0) & (local < self.embedding.rows)
        rows = F.embedding(local.clamp(0, self.embedding.rows - 1), self.embedding.weight)
        return sum_over_ranks(rows * is_mine[..., None])


def _connect(layer: nn.Module, shard: Shard) -> None:
    """Real collectives around the modules that are divided over ranks."""
    assert isinstance(layer, Layer)
    if shard.tp > 1:
        for module in (layer.attention, layer.mlp):
            if module is not None:
                module.register_forward_pre_hook(lambda _, inputs: (copy_to_ranks(inputs[0]),))
                module.register_forward_hook(lambda _, __, out: sum_over_ranks(out))
    if shard.ep > 1 and layer.experts is not None:
        layer.experts.exchange = exchange


LEARNING_RATE = 1e-4
COUNTED_FROM_BYTES = 1 << 16
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


def train(payload: dict[str, Any]) -> dict[str, Any]:
    """Wall seconds of every timed step, losses of all, peak resident bytes and those of the process without a model.

    Payload: piece (model and shard), knobs (mode, vpp, dp, schedule), microbatches, counted, warmup, steps; it runs as
    one of `rank_group.run_forked`, whose process has done `warm`. `counted` steps come first, in which freed memory
    goes back to the system, so that `peak_bytes` is what training holds; in the others the heap keeps it, which is
    faster, and as a GPU's caching allocator does.
    """
    torch.manual_seed(1)
    entered = resident_bytes()
    join(payload)
    baseline = payload["resident_bytes"] + resident_bytes() - entered
    warm()  # touches again what the forking process had touched, so that it does not look like the model's
    _return_freed_memory_from(COUNTED_FROM_BYTES)
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5")  # VmHWM starts again from what is resident now, proc_pid_clear_refs(5)
    before = resident_bytes()
    step = _PREPARE[payload["knobs"]["mode"]](TimedPiece.from_json(payload["piece"]), payload["knobs"], payload)
    losses = [step(number) for number in range(payload["counted"])]
    held = resident_bytes("VmHWM") - before
    _return_freed_memory_from(FREED_FROM_BYTES)
    walls = []
    for number in range(payload["counted"], payload["counted"] + payload["warmup"] + payload["steps"]):
        dist.barrier()
        start = time.perf_counter()
        losses.append(step(number))
        dist.barrier()
        walls.append(time.perf_counter() - start)
    if any(loss != loss for loss in losses):
        raise NotFiniteError("the loss is NaN")
    leave()
    sizes = {"peak_bytes": baseline + held, "baseline_bytes": baseline}
    return {"walls_s": walls[payload["warmup"] :], "losses": losses} | sizes


def _return_freed_memory_from(num_bytes: int) -> None:
    """The C library gives allocations of that many bytes and more back to the system as they are freed (mallopt(3))."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(M_MMAP_THRESHOLD, min(num_bytes, LARGEST_MMAP_THRESHOLD))
        library.mallopt(M_TRIM_THRESHOLD, num_bytes)


SMALLEST = Model(
    name="smallest", num_layers=2, hidden=64, ffn_hidden=64, num_heads=2, num_kv_heads=2, head_dim=32, vocab_size=64,
    moe=MixtureOfExperts(num_experts=2, top_k=1, expert_ffn_hidden=64), moe_layers=(False, True), source="to warm up",
)  # fmt: skip


def warm() -> None:
    """Load what any training process of this kind has loaded before its model, by training the smallest one."""
    shard = Shard(micro_batch_size=1, seq_length=64, dtype="float32")
    part = ModelPart(SMALLEST, shard, range(SMALLEST.num_layers), rank=0, has_embedding=True, has_head=True)
    optimizer = torch.optim.AdamW(part.parameters(), lr=LEARNING_RATE, fused=True)
    tokens = torch.zeros(1, 64, dtype=torch.int64)
    torch.autograd.backward(part(tokens, tokens))
    optimizer.step()


def _data(piece: TimedPiece, samples: int, number: int, replica: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * number + replica)
    tokens = torch.randint(0, piece.model.vocab_size, (samples, piece.shard.seq_length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _whole(piece: TimedPiece, rank: int) -> ModelPart:
    layers = range(piece.model.num_layers)
    return ModelPart(piece.model, piece.shard, layers, rank=rank, has_embedding=True, has_head=True)


def _accumulate(
    part: nn.Module, piece: TimedPiece, microbatches: int, number: int, replica: int, replicas: int = 1
) -> float:
    """Forward and backward of every micro-batch; the mean loss. Gradients are those of the mean over `replicas` once
    these have been added up."""
    size = piece.shard.micro_batch_size
    tokens, targets = _data(piece, size * microbatches, number, replica)
    total = 0.0
    for x, y in zip(torch.split(tokens, size), torch.split(targets, size), strict=True):
        loss = part(x, y)
        torch.autograd.backward(loss / (microbatches * replicas))
        total += float(loss.detach())
    return total / microbatches


def _data_parallel(piece: TimedPiece, knobs: dict[str, Any], payload: dict[str, Any]) -> Callable[[int], float]:
    """Replicas: gradients are views of one flat buffer, as in Megatron-Core, which is summed over the ranks after the
    last micro-batch. Experts that are dealt to the ranks have all their tokens' gradients already."""
    rank, microbatches, replicas = payload["rank"], payload["microbatches"], knobs["dp"]
    part = _whole(piece, rank)
    is_local = [piece.shard.ep > 1 and name.endswith(EXPERTS) for name, _ in part.named_parameters()]
    summed = [p for p, is_own in zip(part.parameters(), is_local, strict=True) if not is_own]
    sizes = [p.numel() for p in summed]
    gradients = torch.zeros(sum(sizes))
    for parameter, view in zip(summed, torch.split(gradients, sizes), strict=True):
        parameter.grad = view.view_as(parameter)

    def loss_of(number: int) -> float:
        loss = _accumulate(part, piece, microbatches, number, rank, replicas)
        dist.all_reduce(gradients)
        return loss

    return _stepped(part.parameters(), loss_of)


EXPERTS = ("experts.up", "experts.down")


def _stepped(
    parameters: Iterable[nn.Parameter], loss_of: Callable[[int], float], *, keeps_gradients: bool = True
) -> Callable[[int], float]:
    """One AdamW step of a number, whose gradients `loss_of` adds to those that were set to 0, in place if kept."""
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=not keeps_gradients)
        loss = loss_of(number)
        optimizer.step()
        return loss

    return step


def _tensor_parallel(piece: TimedPiece, knobs: dict[str, Any], payload: dict[str, Any]) -> Callable[[int], float]:
    part = _whole(piece, payload["rank"])
    return _stepped(part.parameters(), lambda number: _accumulate(part, piece, payload["microbatches"], number, 0))


def _fsdp(piece: TimedPiece, knobs: dict[str, Any], payload: dict[str, Any]) -> Callable[[int], float]:
    from torch.distributed.fsdp import fully_shard

    rank, microbatches = payload["rank"], payload["microbatches"]
    part, mesh = _whole(piece, rank), init_device_mesh("cpu", (payload["ranks"],))
    for layer in (*part.layers, part):
        fully_shard(layer, mesh=mesh)
    return _stepped(
        part.parameters(), lambda number: _accumulate(part, piece, microbatches, number, rank), keeps_gradients=False
    )


SCHEDULES = {
    "1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "interleaved": "ScheduleInterleaved1F1B",
    "zbv": "ScheduleZBVZeroBubble",
}  # fmt: skip


def _pipeline(piece: TimedPiece, knobs: dict[str, Any], payload: dict[str, Any]) -> Callable[[int], float]:
    """torch.distributed.pipelining; stages of equal numbers of layers, looped or V-shaped."""
    from torch.distributed.pipelining import PipelineStage, schedules

    rank, ranks, vpp, microbatches = payload["rank"], payload["ranks"], knobs["vpp"], payload["microbatches"]
    last = ranks * vpp - 1
    per_stage = piece.model.num_layers // (last + 1)
    indices = [rank, last - rank] if knobs["schedule"] == "zbv" else [rank + i * ranks for i in range(vpp)]
    layers = [range(i * per_stage, (i + 1) * per_stage) for i in indices]
    parts = [
        ModelPart(piece.model, piece.shard, own, rank=rank, has_embedding=i == 0, has_head=i == last)
        for own, i in zip(layers, indices, strict=True)
    ]
    stages = [PipelineStage(part, i, last + 1, torch.device("cpu")) for part, i in zip(parts, indices, strict=True)]
    made = getattr(schedules, SCHEDULES[knobs["schedule"]])
    schedule = made(stages[0] if vpp == 1 else stages, n_microbatches=microbatches, loss_fn=_given_loss)

    def loss_of(number: int) -> float:
        tokens, targets = _data(piece, piece.shard.micro_batch_size * microbatches, number, 0)
        losses: list[Tensor] = []
        given = {"target": targets, "losses": losses} if last in indices else {}
        schedule.step(*((tokens,) if 0 in indices else ()), return_outputs=False, targets=targets, **given)
        return float(torch.stack(losses).mean()) if losses else 0.0

    return _stepped([p for part in parts for p in part.parameters()], loss_of)


def _given_loss(loss: Tensor, _: Tensor) -> Tensor:
    """The last stage computes the loss itself, so that logits die with their micro-batch."""
    return loss


_PREPARE = {"dp": _data_parallel, "tp": _tensor_parallel, "fsdp": _fsdp, "pp": _pipeline}
