"""The kernels a piece of the model runs, as a list of operations, and the seconds they take.

A layer is written down as what it launches (`layer.py`): linear layers, grouped linear layers, streams of bytes
and calls of known time. Here the list becomes seconds per pass and part, kernels per pass (for launch overhead), and
forward seconds per module (for recompute). One list serves time, the `explain` table and the tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import EllipsisType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.expert_products import expert_precision, expert_products_s, with_experts_of
from primus_search.cost.laws.gemm import GATHERS_LOW, GemmPass, gemm_s, operand_cast_s, quantize_s
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s, stream_s
from primus_search.space.memo import distinct, in_order
from primus_search.values.candidates import Candidates, Floats, Fp8, GroupedGemm, Ints
from primus_search.values.job import Job
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import state_bytes


class Pass(IntEnum):
    """When an operation runs: forward, input gradient or weight gradient."""

    FORWARD = 0
    INPUT_GRAD = 1
    WEIGHT_GRAD = 2


class Part(IntEnum):
    """What the seconds of a stage are spent on; the names of `cost.projection.Step`."""

    ATTENTION = 0
    MLP = 1
    EXPERTS = 2
    ROUTING = 3
    NORMS = 4
    EMBEDDING_AND_HEAD = 5
    RECOMPUTE = 6
    LAUNCH = 7
    TENSOR_COMM = 8
    CONTEXT_COMM = 9
    EXPERT_COMM = 10
    SHARD_COMM = 11
    TOWER = 12
    HOST_COPIES = 13


class Module(IntEnum):
    """What a recompute setting names: the piece of a layer an operation belongs to."""

    LINEAR = 0  # attention projections other than the MLA up-projections
    MLA_UP = 1
    CORE = 2  # scores, softmax, values
    NORM = 3
    MLP = 4
    ACTIVATION = 5
    EXPERTS = 6
    EXPERT_ACTIVATION = 7
    ROUTER = 8
    ELEMENTWISE = 9
    COMM = 10
    EXPERT_COMM = 11


class Producer(IntEnum):
    """What wrote the input of a product; it may take part in the cast to low precision."""

    OTHER = 0
    NORM = 1
    ACTIVATION = 2


BothPasses = tuple[ArrayLike, ArrayLike]
"""Of the forward pass and of the backward pass."""
_BOTH = (Pass.FORWARD, Pass.INPUT_GRAD)


@dataclass(frozen=True, slots=True)
class LinearOp:
    """y = x W on m tokens: forward, both gradients, the casts of a low-precision recipe, gradient accumulation.

    input_share     share of x that this rank has before sequence parallelism gathers it
    gradient_share  likewise of the gradient of y
    is_trained      false: W is frozen, and there is no weight gradient
    """

    part: Part
    module: Module
    m: ArrayLike
    n: ArrayLike
    k: ArrayLike
    precision: ArrayLike = Fp8.NONE
    producer: Producer = Producer.OTHER
    input_share: ArrayLike = 1.0
    gradient_share: ArrayLike = 1.0
    is_trained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLinear:
    """The same for `groups` experts with `rows` tokens each.

    is_joined  1 where all experts are one kernel that writes the activation between two products and its casts, too
    consumer   what reads the product: the activation then writes the gradient of it
    """

    part: Part
    module: Module
    rows: ArrayLike
    groups: ArrayLike
    n: ArrayLike
    k: ArrayLike
    precision: ArrayLike
    mode: ArrayLike
    producer: Producer = Producer.OTHER
    consumer: Producer = Producer.OTHER
    is_joined: ArrayLike = 0.0
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class Traffic:
    """A memory-bound step: bytes read and written, forward and backward, in so many kernels each."""

    part: Part
    module: Module
    moved_bytes: BothPasses
    kernels: BothPasses = (1.0, 1.0)
    streams: tuple[Stream, Stream] = (Stream.ELEMENTWISE, Stream.ELEMENTWISE)


@dataclass(frozen=True, slots=True)
class Call:
    """Something whose seconds another term knows: attention, a collective, a synchronisation with the host."""

    part: Part
    module: Module
    seconds: BothPasses
    kernels: BothPasses = (1.0, 1.0)


Operation = LinearOp | GroupedLinear | Traffic | Call

ROWS, ELEMENTWISE = (Stream.NORM, Stream.NORM_BACKWARD), (Stream.ELEMENTWISE, Stream.ELEMENTWISE)
"""Steps along the rows of a tensor, and over its elements."""


def streamed(
    part: Part, module: Module, elements: Floats, passes: Sequence[float], streams: tuple[Stream, Stream] = ROWS
) -> Traffic:
    """A step over a BF16 tensor; passes: reads and writes of an element forward and backward, kernels likewise."""
    forward, backward, *kernels = passes
    moved = (forward * elements * BF16_BYTES, backward * elements * BF16_BYTES)
    return Traffic(part, module, moved, kernels=(kernels[0], kernels[1]), streams=streams)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Seconds of a piece of the model, per candidate.

    seconds         (passes, parts, rows)
    forward_module_s (modules, rows) forward seconds by module, what recompute repeats
    core_backward_s (rows) backward seconds of attention's core
    kernels         (passes, modules, rows) launches
    """

    seconds: Floats
    forward_module_s: Floats
    core_backward_s: Floats
    kernels: Floats

    def pass_s(self, which: Pass) -> Floats:
        """Seconds of one pass, all parts."""
        return in_order(self.seconds[which])

    @property
    def gradients_s(self) -> Floats:
        """Seconds of both gradients."""
        return self.pass_s(Pass.INPUT_GRAD) + self.pass_s(Pass.WEIGHT_GRAD)

    def plus(self, other: "Work") -> "Work":
        """Both, one after the other."""
        return Work(
            seconds=self.seconds + other.seconds,
            forward_module_s=self.forward_module_s + other.forward_module_s,
            core_backward_s=self.core_backward_s + other.core_backward_s,
            kernels=self.kernels + other.kernels,
        )

    def slowed(self, factor: Floats) -> "Work":
        """The same kernels, each taking `factor` times as long."""
        return replace(
            self,
            seconds=self.seconds * factor,
            forward_module_s=self.forward_module_s * factor,
            core_backward_s=self.core_backward_s * factor,
        )

    def take(self, rows: Ints) -> "Work":
        """The work of some candidates, repeated where a row is."""
        return Work(
            seconds=self.seconds.take(rows, axis=2),
            forward_module_s=self.forward_module_s.take(rows, axis=1),
            core_backward_s=self.core_backward_s.take(rows),
            kernels=self.kernels.take(rows, axis=2),
        )


def tally(
    operations: Sequence[Operation],
    *,
    acc: Accelerator,
    stack: Stack,
    rows: int,
    shares_rows: bool = False,
    formats: Ints | None = None,
) -> Work:
    """Seconds and kernels of a list of operations for `rows` candidates.

    formats      `StateFormat` codes of the rows, which say how gradients accumulate; None: all as the stack keeps them
    shares_rows  price equal products once; not where numbers of device or stack are columns of their own
    """
    work = Work(
        seconds=np.zeros((len(Pass), len(Part), rows)),
        forward_module_s=np.zeros((len(Module), rows)),
        core_backward_s=np.zeros(rows),
        kernels=np.zeros((len(Pass), len(Module), rows)),
    )
    gradient_bytes = state_bytes(stack, "gradient_bytes", np.zeros(rows, np.int64) if formats is None else formats)
    for kind, columns_of, price in _PRODUCTS:
        products = [o for o in operations if isinstance(o, kind)]
        if not products:
            continue
        columns = [_stack(column, rows) for column in columns_of(products, stack, gradient_bytes)]
        distinct_columns, number = _distinct_entries(columns, shares_rows)
        priced = [column[number] for column in price(acc, stack, *distinct_columns)]
        for i, o in enumerate(products):
            for p in _BOTH if isinstance(o, LinearOp | GroupedLinear) and not o.is_trained else Pass:
                _add(work, o.part, o.module, p, priced[p][i], priced[len(Pass) + p][i])
    _traffic(work, [o for o in operations if isinstance(o, Traffic)], acc, stack)
    for o in operations:
        if isinstance(o, Call):
            for which, seconds, kernels in zip(_BOTH, o.seconds, o.kernels, strict=True):
                _add(work, o.part, o.module, which, np.asarray(seconds), kernels)
    return work


def tallied(job: Job, operations: Sequence[Operation], c: Candidates, *, shares_rows: bool = False) -> Work:
    """`tally` of what a device of a job runs, a row per candidate."""
    return tally(
        operations, acc=job.accelerator, stack=job.stack, rows=len(c), shares_rows=shares_rows, formats=c.state_format
    )


def _add(work: Work, part: Part, module: Module, which: Pass, seconds: Floats, kernels: ArrayLike) -> None:
    work.seconds[which, part] += seconds
    work.kernels[which, module] += np.asarray(kernels) * (seconds > 0)
    if which is Pass.FORWARD:
        work.forward_module_s[module] += seconds
    elif module is Module.CORE:
        work.core_backward_s[:] += seconds


def _stack(values: Sequence[ArrayLike], rows: int) -> Floats:
    out = np.empty((len(values), rows))
    for row, value in zip(out, values, strict=True):
        row[:] = value
    return out


def _distinct_entries(columns: list[Floats], shares_rows: bool) -> tuple[list[Floats], Ints | EllipsisType]:
    """Columns of one shape with one entry per distinct combination, where rows may share, and what spreads them."""
    if not shares_rows:
        return columns, ...
    flat = [column.reshape(-1) for column in columns]
    number, first = distinct([column.view(np.int64) for column in flat])
    return [column[first] for column in flat], number.reshape(columns[0].shape)


Facts = Sequence[Sequence[ArrayLike]]
"""Columns of products: per column, what each product has."""


def _linear_columns(ops: Sequence[LinearOp], stack: Stack, gradient_bytes: Floats) -> Facts:
    """What `_linear_s` takes."""
    sizes = ((o.m, o.n, o.k, o.precision, o.input_share, o.gradient_share) for o in ops)
    return [*zip(*sizes, strict=True), _casts_with(ops, stack), [gradient_bytes] * len(ops)]


def _linear_s(
    acc: Accelerator, stack: Stack, m: Floats, n: Floats, k: Floats, precision: Floats, input_share: Floats,
    gradient_share: Floats, is_fused: Floats, gradient_bytes: Floats,
) -> Sequence[Floats]:  # fmt: skip
    """Seconds of forward, input gradient and weight gradient of linears, and kernels of each.

    is_fused  1 where the kernel that writes the input takes part in its cast
    Casts run as measured: the stack's `memory_efficiency` is of kernels that frameworks write themselves.
    """
    code = precision.astype(np.int64)
    slower = np.where(code == Fp8.NONE, 1.0, 1.0 / (stack.efficiencies.fp8_efficiency * acc.gemm.fp8_library_factor))
    slower = slower / (stack.efficiencies.gemm_efficiency * acc.training_rate)
    forward = gemm_s(acc, m, n, k, code, GemmPass.FORWARD) * slower
    input_grad = gemm_s(acc, m, k, n, code, GemmPass.INPUT_GRAD) * slower
    weight_grad = gemm_s(acc, n, k, m, code, GemmPass.WEIGHT_GRAD) * slower
    weight_grad = _accumulated(weight_grad, n * k * (m > 0), gradient_bytes, acc, stack)
    is_cast_before = GATHERS_LOW[code] & stack.precision.has_fp8_tensor_gather
    input_share, gradient_share = (np.where(is_cast_before, s, 1.0) for s in (input_share, gradient_share))
    cast_input, input_kernels = operand_cast_s(acc, m * k, input_share, code, is_fused > 0.0)
    cast_gradient, gradient_kernels = operand_cast_s(acc, m * n, gradient_share, code, np.False_)
    cast_weight = 0.0 if stack.precision.caches_fp8_weights else quantize_s(acc, n * k, code)
    forward = forward + cast_input + cast_weight
    input_grad = input_grad + cast_gradient
    return forward, input_grad, weight_grad, 1.0 + input_kernels, 1.0 + gradient_kernels, np.ones_like(input_kernels)


def _casts_with(ops: Sequence[LinearOp | GroupedLinear], stack: Stack) -> list[bool]:
    """Whether the kernel that writes the input of each product takes part in its cast."""
    helps = (False, stack.kernels.has_fused_fp8_cast, stack.kernels.has_fused_activation_cast)
    return [helps[o.producer] for o in ops]


def _accumulated(
    weight_grad: Floats, elements: Floats, gradient_bytes: Floats, acc: Accelerator, stack: Stack
) -> Floats:
    """Weight-gradient seconds with accumulation into the main gradient.

    Fused: the GEMM's epilogue reads and writes the main gradient, under the GEMM while there is compute to hide it.
    Else one more kernel reads the BF16 product and reads and writes the main gradient.
    """
    rate = bandwidth_bytes_per_s(acc, Stream.ELEMENTWISE) * stack.efficiencies.memory_efficiency
    main_s = elements * 2.0 * gradient_bytes / rate
    if stack.kernels.has_gradient_accumulation_fusion:
        return np.maximum(weight_grad, main_s)
    return weight_grad + main_s + elements * 2.0 / rate


def _grouped_columns(ops: Sequence[GroupedLinear], stack: Stack, gradient_bytes: Floats) -> Facts:
    """Columns of `GroupedLinears`."""
    sizes = zip(*((o.rows, o.groups, o.n, o.k, o.precision, o.mode) for o in ops), strict=True)
    beside = zip(
        *((o.is_joined, *(p is Producer.ACTIVATION for p in (o.producer, o.consumer))) for o in ops), strict=True
    )
    return [*sizes, _casts_with(ops, stack), *beside, [gradient_bytes] * len(ops)]


class GroupedLinears(NamedTuple):
    """Columns of grouped linears, one entry per linear and row.

    follows, leads  1 where the activation wrote the input, or writes the gradient of the output
    gradient_bytes  per parameter of the main gradient
    """

    tokens: Floats
    groups: Floats
    n: Floats
    k: Floats
    precision: Floats
    mode: Floats
    is_fused: Floats
    is_joined: Floats
    follows: Floats
    leads: Floats
    gradient_bytes: Floats


def _grouped_linear_s(acc: Accelerator, stack: Stack, *columns: Floats) -> Sequence[Floats]:
    """Seconds of forward, input gradient and weight gradient of `GroupedLinears`, and kernels of each."""
    linears = GroupedLinears(*columns)
    tokens, groups, n, k, precision, mode, is_fused, is_joined, follows, leads, _ = linears
    code = expert_precision(precision, mode)
    acc = with_experts_of(acc, stack)
    slower = np.where(code == Fp8.NONE, 1.0, 1.0 / stack.efficiencies.fp8_efficiency)
    slower = slower / (stack.efficiencies.grouped_gemm_efficiency * acc.training_rate)
    forward, input_grad, weight_grad = (
        expert_products_s(acc, tokens, groups, n, k, code, mode, p) * slower for p in GemmPass
    )
    weight_grad = _accumulated(weight_grad, groups * n * k * (tokens > 0), linears.gradient_bytes, acc, stack)
    cast_input, input_kernels = operand_cast_s(acc, tokens * groups * k, 1.0, code, is_fused > 0.0)
    cast_gradient, gradient_kernels = operand_cast_s(acc, tokens * groups * n, 1.0, code, np.False_)
    # One product reads a weight in each direction, so each casts it for itself where nothing keeps the cast.
    cast_weight = (
        0.0 if stack.precision.caches_fp8_weights else quantize_s(acc, groups * n * k * (tokens > 0), code, 1.0)
    )
    casts_input, casts_gradient = 1.0 - is_joined * follows, 1.0 - is_joined * leads
    cast_input, input_kernels = casts_input * cast_input, casts_input * input_kernels
    cast_gradient, gradient_kernels = casts_gradient * cast_gradient, casts_gradient * gradient_kernels
    one_by_one = ((mode == GroupedGemm.LEGACY) | stack.experts.has_product_per_expert) & (is_joined == 0.0)
    launches = np.where(one_by_one, groups, 1.0)
    kernels = (launches * (1.0 + input_kernels), launches * (1.0 + gradient_kernels), launches)
    return forward + cast_input + cast_weight, input_grad + cast_gradient + cast_weight, weight_grad, *kernels


_PRODUCTS: tuple[tuple[type[Operation], Callable[..., Facts], Callable[..., Sequence[Floats]]], ...] = (
    (LinearOp, _linear_columns, _linear_s),
    (GroupedLinear, _grouped_columns, _grouped_linear_s),
)
"""Operations that a law prices by columns: the columns of several, and seconds and kernels by pass."""


def _traffic(work: Work, ops: list[Traffic], acc: Accelerator, stack: Stack) -> None:
    latency_s = acc.memory.latency_s

    def kernels_s(moved: ArrayLike, kernels: ArrayLike, kind: Stream) -> Floats:
        return stream_s(acc, moved, kind) + (np.asarray(moved) > 0) * (np.asarray(kernels) - 1.0) * latency_s

    for o in ops:
        rate = 1.0 if o.streams[0] is Stream.GATHER else stack.efficiencies.memory_efficiency
        for which, moved, kernels, kind in zip(_BOTH, o.moved_bytes, o.kernels, o.streams, strict=True):
            _add(work, o.part, o.module, which, kernels_s(moved, kernels, kind) / rate, kernels)
