"""Times the pieces of a candidate on a device: one layer of each kind, embedding, head with loss, optimizer.

Layers run as a short chain of copies whose weights and activations exceed the last-level cache, as they do in a real
stage, so nothing is measured warm that training meets cold. Forward, input gradient and weight gradient are told
apart by a second run whose parameters are frozen: it does everything but weight gradients.

    forward       seconds of one micro-batch through one piece
    input_grad    backward with frozen parameters
    weight_grad   what backward with parameters takes more, accumulation into an existing gradient included
    recompute     what backward takes more when the candidate's recomputation is on (layers only)
"""

import datetime
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from primus_search.files.plain_forms import from_plain, to_plain
from primus_search.measure.device import torch_device as devices
from primus_search.measure.device.device_info import CPU, describe
from primus_search.measure.device.timing import PieceMeasurement, Timing, measure, measure_cycle
from primus_search.measure.device.torch_device import heat, placed
from primus_search.measure.modules.fused_operations import MissingKernelError
from primus_search.measure.modules.layers import Embedding, Layer, OutputHead
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.streams import MainGradients, adamw_update, master_update
from primus_search.measure.rank_group import join, leave
from primus_search.values.candidates import Recompute
from primus_search.values.model import LayerKind, Model

MAX_CHAIN = 2  # copies of a layer in a chain; with their activations enough to leave the cache
OPTIMIZER_PARAMS = 4_000_000  # parameters of the optimizer benchmark: well beyond any cache, soon done
GPU_OPTIMIZER_PARAMS = 1 << 27  # long enough that the start of a kernel does not count


class NotFiniteError(RuntimeError):
    """The piece produced a NaN or an infinity: its time would say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPiece:
    """What to time: which piece of which model at which shard. `kind` is for layers only."""

    piece: str
    model: Model
    shard: Shard
    kind: LayerKind | None = None

    @property
    def shape(self) -> str:
        """Canonical text of everything that changes the piece's time, equal for equal work."""
        s, m = self.shard, self.model
        sizes: dict[str, object] = {"hidden": m.hidden, "norm": m.norm, "bias": m.has_linear_bias}
        if self.piece == "optimizer":
            return "parameters"
        sizes |= {"adapters": to_plain(m.adapters)} if m.adapters else {}
        sizes |= {"batch": s.micro_batch_size, "seq": s.seq_length, "tp": s.tp, "cp": s.cp, "sp": s.sequence_ranks}
        if self.piece != "layer":
            sizes |= {"vocab": m.vocab_size}
            sizes |= {"fused": s.has_fused_loss} if self.piece == "head" else {"positions": m.learned_positions}
            return _canonical(sizes)
        assert self.kind is not None
        sizes |= {"heads": m.num_heads, "kv": m.num_kv_heads, "dim": m.head_dim, "window": self.kind.window}
        sizes |= {"qkv_bias": m.has_qkv_bias, "qk_norm": m.has_qk_norm, "norms": m.num_norms, "gated": m.is_gated}
        sizes |= {"latent": asdict(m.latent) if m.latent else None, "fp8": s.fp8.name, "recompute": int(s.recompute)}
        if self.kind.is_moe and m.moe:
            sizes |= {"moe": asdict(m.moe), "ep": s.ep, "etp": s.etp, "grouped": s.expert_kernel.name}
        else:
            sizes |= {"ffn": m.ffn_hidden_of(self.kind)}
        if self.kind.mixer is not None:
            sizes |= {"mixer": to_plain(self.kind)["mixer"]}
        if self.kind.feed_forward is not None:
            sizes |= {"feed_forward": type(self.kind.feed_forward).__name__}
        return _canonical(sizes)

    def to_json(self) -> str:
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str) -> "TimedPiece":
        return from_plain(cls, json.loads(text))


def _canonical(sizes: dict[str, object]) -> str:
    return json.dumps(sizes, sort_keys=True, separators=(",", ":"))


def bench(piece: TimedPiece, *, kind: str, budget_s: float, threads: int = 1) -> PieceMeasurement:
    """One piece, measured on the device of that kind of this machine."""
    if kind == CPU:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    with placed(kind, piece.shard.dtype):
        timings, held = _RUNNERS[piece.piece](piece, Setting(device=kind, budget_s=budget_s, threads=threads))
    info = describe(kind)
    return PieceMeasurement(
        kernel=piece.piece,
        shape=piece.shape,
        dtype=piece.shard.dtype,
        seconds={name: timing.median_s for name, timing in timings.items()},
        spreads_s={name: timing.spread_s for name, timing in timings.items()},
        device=info.name,
        versions=info.versions,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        **asdict(held),
        notes=tuple(dict.fromkeys(note for timing in timings.values() for note in timing.notes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensors:
    """Memory of a piece as `PieceMeasurement` has it: `memory_bytes` and `peaks_bytes`; none on a CPU."""

    memory_bytes: float = 0.0
    peaks_bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how long one piece is measured."""

    device: str
    budget_s: float
    threads: int


def _layer(piece: TimedPiece, setting: Setting) -> tuple[dict[str, Timing], HeldTensors]:
    assert piece.kind is not None
    if piece.shard.recompute & Recompute.OP_SAC:
        raise MissingKernelError("per-operation checkpointing is not measured")
    if piece.model.adapters and piece.model.adapters.base.is_packed:
        raise MissingKernelError("weights that are unpacked for each product are not measured")
    x, plain = (_hidden(piece),), replace(piece.shard, recompute=Recompute.NONE)
    build = partial(Layer, piece.model, kind=piece.kind)
    if not piece.shard.recompute:
        return _passes(partial(build, shard=plain), x, setting)
    half = replace(setting, budget_s=setting.budget_s / 2)
    timings, _ = _passes(partial(build, shard=plain), x, half)
    again, held = _passes(partial(build, shard=piece.shard), x, half, split=False)
    extra = again["backward"].median_s - timings["input_grad"].median_s - timings["weight_grad"].median_s
    return timings | {"recompute": replace(again["backward"], median_s=max(extra, 0.0))}, held


def _head(piece: TimedPiece, setting: Setting) -> tuple[dict[str, Timing], HeldTensors]:
    return _passes(partial(OutputHead, piece.model, piece.shard), (_hidden(piece), _tokens(piece)), setting)


def _embedding(piece: TimedPiece, setting: Setting) -> tuple[dict[str, Timing], HeldTensors]:
    timings, held = _passes(partial(Embedding, piece.model, piece.shard), (_tokens(piece),), setting, split=False)
    backward = timings.pop("backward")
    return timings | {"input_grad": replace(backward, median_s=0.0), "weight_grad": backward}, held


def _optimizer(piece: TimedPiece, setting: Setting) -> tuple[dict[str, Timing], HeldTensors]:
    """Seconds per parameter of an update: of FP32 weights, or of BF16 weights with masters."""
    is_cpu = setting.device == CPU
    num_params = OPTIMIZER_PARAMS if is_cpu else GPU_OPTIMIZER_PARAMS
    update = (adamw_update if is_cpu else master_update)(num_params)
    timing = measure(update, **asdict(setting))
    return {"step_per_param": _per_module(timing, num_params)}, HeldTensors()


Runner = Callable[[TimedPiece, Setting], tuple[dict[str, Timing], HeldTensors]]
_RUNNERS: dict[str, Runner] = {"layer": _layer, "head": _head, "embedding": _embedding, "optimizer": _optimizer}


def _hidden(piece: TimedPiece) -> Tensor:
    shard = piece.shard
    return torch.randn(shard.micro_batch_size, shard.resident_seq, piece.model.hidden).requires_grad_()


def _tokens(piece: TimedPiece) -> Tensor:
    shard = piece.shard
    return torch.randint(0, shard.share(piece.model.vocab_size), (shard.micro_batch_size, shard.context_seq))


def _passes(
    build: Callable[[], nn.Module], inputs: tuple[Tensor, ...], setting: Setting, *, split: bool = True
) -> tuple[dict[str, Timing], HeldTensors]:
    """Forward and backward of a chain of modules, per module; with `split`, backward without weight gradients too."""
    chain = _chain(build, inputs, setting.device)
    if torch.get_default_dtype() == torch.bfloat16:
        MainGradients(chain)  # what backward adds new gradients to, as frameworks keep it beside BF16 weights
    held = _held(chain, inputs, setting.device)
    timings = _time_chain(chain, inputs, setting, split=split)
    if split:
        whole, frozen = timings.pop("backward"), timings.pop("frozen_backward")
        timings.pop("frozen_forward")
        timings["input_grad"] = frozen
        timings["weight_grad"] = replace(whole, median_s=max(whole.median_s - frozen.median_s, 0.0))
    return timings, held


def _chain(build: Callable[[], nn.Module], inputs: tuple[Tensor, ...], kind: str) -> list[nn.Module]:
    """As many copies as it takes to exceed the cache twice, when the piece passes on what it takes in."""
    first = build()
    if len(inputs) > 1 or inputs[0].dtype == torch.int64:
        return [first]
    bytes_each = sum(p.numel() * p.element_size() for p in first.parameters()) + inputs[0].nbytes
    copies = min(MAX_CHAIN, 1 + 2 * devices.cache_bytes(kind) // max(bytes_each, 1))
    return [first, *(build() for _ in range(copies - 1))]


def _through(chain: list[nn.Module], inputs: tuple[Tensor, ...]) -> Tensor:
    """The output of modules one after another."""
    out = inputs[0]
    for module in chain:
        out = module(out, *inputs[1:])
    return out


def _held(chain: list[nn.Module], inputs: tuple[Tensor, ...], kind: str) -> HeldTensors:
    """What the chain keeps per module, and its peaks in forward and backward once gradients exist."""
    if kind == CPU:
        return HeldTensors()
    kept = _kept_bytes(chain, inputs, kind)

    def both() -> None:
        out = _through(chain, inputs)
        _backward(out, torch.ones_like(out))
        inputs[0].grad = None

    both()
    largest = max((parameter.nbytes for parameter in _trained(chain)), default=0)
    peaks = devices.peaks_bytes(kind, both) | {"modules": float(len(chain)), "gradient": float(largest)}
    return HeldTensors(memory_bytes=kept, peaks_bytes=peaks)


def _trained(chain: list[nn.Module]) -> list[nn.Parameter]:
    """Parameters that get gradients."""
    return [parameter for module in chain for parameter in module.parameters() if parameter.requires_grad]


def _backward(out: Tensor, gradient: Tensor | None) -> None:
    """Backward of an output; nothing where nothing before it is trained."""
    if out.requires_grad:
        torch.autograd.backward(out, gradient)


def _kept_bytes(chain: list[nn.Module], inputs: tuple[Tensor, ...], kind: str) -> float:
    """What the device's allocator holds more after forward, per module: input included, output not (`trace`).

    Each module's output is the next one's input, so the last output stands for the first input. The first forward is
    for what libraries allocate once.
    """
    held = 0.0
    for _ in range(2):
        before, out = devices.allocated_bytes(kind), _through(chain, inputs)
        held = devices.allocated_bytes(kind) - before
        del out
    return held / len(chain)


def _time_chain(
    chain: list[nn.Module], inputs: tuple[Tensor, ...], setting: Setting, *, split: bool
) -> dict[str, Timing]:
    """One cycle: forward, backward, and with `split` both again with frozen parameters, so that all share the noise."""
    state: dict[str, Tensor] = {}
    trained = _trained(chain)

    def forward() -> None:
        state["out"] = _through(chain, inputs)

    def backward() -> None:
        _backward(state.pop("out"), gradient)
        inputs[0].grad = None

    def frozen_forward() -> None:
        for parameter in trained:
            parameter.requires_grad_(False)
        forward()
        for parameter in trained:
            parameter.requires_grad_(True)

    forward()
    if not bool(torch.isfinite(state["out"]).all()):
        raise NotFiniteError("the output holds NaN or infinity")
    gradient = torch.randn_like(state["out"]) if state["out"].dim() else None
    passes = {"forward": forward, "backward": backward}
    if split:
        passes |= {"frozen_forward": frozen_forward, "frozen_backward": backward}
    timings = measure_cycle(passes, **asdict(setting))
    return {name: _per_module(timing, len(chain)) for name, timing in timings.items()}


def _per_module(timing: Timing, modules: int) -> Timing:
    return replace(timing, median_s=timing.median_s / modules, spread_s=timing.spread_s / modules)


def bench_pieces(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Measures the pieces of one candidate on one device, within a common budget of seconds.

    As one of several ranks, all of them measure the same piece at the same time: in training no device works alone.
    """
    pieces = [TimedPiece.from_json(text) for text in payload["pieces"]]
    budget_s = payload["budget_s"] / max(len(pieces), 1)
    is_group = payload.get("ranks", 1) > 1
    if is_group:
        join(payload)
    heat(payload["device"])
    found = []
    for piece in pieces:
        if is_group:
            dist.barrier()
        found.append(asdict(bench(piece, kind=payload["device"], budget_s=budget_s, threads=payload["threads"])))
    if is_group:
        leave()
    return found


def warm() -> None:
    """Nothing: that this module is loaded has loaded torch. A device's context must not exist before a fork."""
