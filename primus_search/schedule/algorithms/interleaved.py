"""Interleaved 1F1B and zero bubble: vpp chunks per rank, micro-batches in groups (Narayanan et al. 2021, 2104.04473).

The published schedule needs m to be a multiple of p. Here any m works: several ways to cut m into groups are tried,
each with the shortest warm-up that cannot deadlock, and the fastest that fits the memory limit is kept.

Interleaved ZB1P splits the backward and keeps the memory at p micro-batches. GIS lets smaller groups of micro-batches
walk through the chunks together, which saves activations: g need g + (p - g)/v (PipeOffload, arXiv:2503.01328).

1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473), GPipe (Huang et al. 2019, arXiv:1811.06965), and
what other orders share with them: a warm-up of forwards, a steady part that alternates, and a cool-down of backwards.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np

from primus_search.schedule import optimise
from primus_search.schedule.kernel_cache import njit
from primus_search.schedule.registry import TOLERANCE, Request, register
from primus_search.schedule.simulation.pass_kernels import BW, B, F, W
from primus_search.schedule.simulation.timeline import Timeline, run
from primus_search.schedule.table import Bools, Ints, Placement, Table

FUSED = -1
"""Both gradients in one pass, instead of a delay of the weight gradients."""


def warm_steady_cool(
    request: Request, chunk: Ints, micro_batch: Ints, warm_up: Ints, delay: Ints | int = FUSED
) -> Table:
    """`warm_up[rank]` forwards, then one forward and one backward in turn, then the backwards that are left.

    Every rank runs its forwards in the order of `chunk` and `micro_batch` and its backwards in the same order with
    the chunks from behind (loop placement). Micro-batches beyond those of the request are left out; the passes after
    them keep their turns. `delay[rank]`: input gradients that run before the first weight gradient does; then one
    follows each, and the others come last.
    """
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    wait = np.zeros(p, dtype=np.int64) + delay
    kind, stage, micro = _alternate(chunk, micro_batch, np.asarray(warm_up, dtype=np.int64), wait, p, m, v)
    return request.table(kind, stage, micro)


@njit(cache=True)
def _alternate(chunk, micro, warm_up, delay, p, m, v):  # type: ignore[no-untyped-def]
    n, most = len(chunk), 3 * p * m * v
    new_kind, new_stage, new_micro = np.empty(most, np.int8), np.empty(most, np.int16), np.empty(most, np.int32)
    to = 0
    for r in range(p):
        forwards, backwards, weights = 0, 0, 0
        while backwards < n or (weights < n and delay[r] >= 0):
            if delay[r] >= 0 and (backwards == n or weights < backwards - delay[r]):
                at, k, s = weights, W, (v - 1 - chunk[weights]) * p + r
                weights += 1
            elif forwards < n and forwards - backwards <= max(0, warm_up[r]):
                at, k, s = forwards, F, chunk[forwards] * p + r
                forwards += 1
            else:
                at, k, s = backwards, BW if delay[r] < 0 else B, (v - 1 - chunk[backwards]) * p + r
                backwards += 1
            if micro[at] < m:
                new_kind[to], new_stage[to], new_micro[to] = k, s, micro[at]
                to += 1
    return new_kind[:to], new_stage[:to], new_micro[:to]


@register("1f1b", summary="one forward, one backward in turn", placement=Placement.LOOP)
def one_f_one_b(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak p - r on rank r (or m if that is less)."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), p - 1 - np.arange(p))


@register("gpipe", summary="all forwards, then all backwards", placement=Placement.LOOP)
def gpipe(request: Request) -> Table:
    """Bubble (p-1)(F+B+W), peak m."""
    p, m = request.stages, request.microbatches
    return warm_steady_cool(request, np.zeros(m, np.int64), np.arange(m), np.full(p, m))


@register("interleaved", summary="1F1B over vpp chunks per rank", placement=Placement.LOOP, virtual_stages=None)
def interleaved(request: Request) -> Table:
    """Bubble (p-1)(F+B+W)/v, peak (v p + p - 1)/v on rank 0, when m is a multiple of p.

    `group`: Megatron's microbatch_group_size_per_vp_stage; above p it hides hops and keeps more activations.
    """
    if request.group is not None and request.group < 1:
        raise request.refuse(f"group={request.group}; a group has at least 1 micro-batch")
    return _fastest(request, _candidates(request))


@register("interleaved", summary="1F1B over vpp chunks per rank, as Megatron-Core runs it",
          launchers=("megatron", "nemo", "primus"), placement=Placement.LOOP, virtual_stages=None)  # fmt: skip
def of_megatron(request: Request) -> Table:
    """Groups of `group` micro-batches (`group_size` unless given), what is left over last.

    Source: megatron/core/pipeline_parallel/schedules.py get_schedule_table and get_pp_rank_microbatches.
    """
    p, m = request.stages, request.microbatches
    if m < (request.group or p):
        raise request.refuse("a group has at least stages micro-batches, and no more than there are")
    group = request.group or group_size(m, p)
    warm_up = 2 * (p - 1 - np.arange(p)) + (request.virtual_stages - 1) * group
    return in_groups(request, published_cut(m, group), warm_up)


def group_size(microbatches: int, stages: int) -> int:
    """Micro-batches per group that a launch file sets for Megatron: `stages` where they divide.

    Else the smallest N >= stages whose remainder, microbatches mod N, is 0 or at least `stages`.
    Source: megatron/core/pipeline_parallel/schedules.py:1170.
    """
    return next(n for n in range(stages, microbatches + 1) if microbatches % n == 0 or microbatches % n >= stages)


def rounds_of_torch(p: Ints, m: Ints) -> Bools:
    """Where the interleaved schedules of torch have an order: equal rounds of at least p micro-batches."""
    is_round: Bools = m % np.maximum(1, m // p) == 0
    return is_round


@register("interleaved", summary="1F1B over vpp chunks per rank, as torch runs it", launchers=("torchtitan",),
          placement=Placement.LOOP, virtual_stages=None, serves=rounds_of_torch,
          needs="micro-batches must be a multiple of the rounds, micro-batches // stages")  # fmt: skip
def of_torch(request: Request) -> Table:
    """Equal rounds of at least p micro-batches. Source: torch.distributed.pipelining ScheduleInterleaved1F1B."""
    return _in_rounds(request, 2, FUSED)


@register("interleaved-zb", summary="ZB1P over vpp chunks per rank, as torch runs it", launchers=("torchtitan",),
          placement=Placement.LOOP, virtual_stages=None, splits_weight=True, serves=rounds_of_torch,
          needs="micro-batches must be a multiple of the rounds, micro-batches // stages")  # fmt: skip
def zero_bubble_of_torch(request: Request) -> Table:
    """Rank r delays r weight gradients. Source: torch.distributed.pipelining ScheduleInterleavedZeroBubble."""
    return _in_rounds(request, 1, np.arange(request.stages))


def _in_rounds(request: Request, slope: int, delay: Ints | int) -> Table:
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    sizes = balanced(m, max(1, m // p))
    warm_up = (v - 1) * sizes[0] + slope * (p - 1 - np.arange(p))
    return in_groups(request, sizes, warm_up, delay)


def _candidates(request: Request) -> Iterator[Table]:
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    behind = p - 1 - np.arange(p)
    if v == 1:
        yield in_groups(request, (m,), behind)
        return
    for sizes in _cuts(m, p) if request.group is None else [published_cut(m, request.group)]:
        # The published warm-up counts places of groups that few micro-batches do not fill.
        nominal = request.group or (p if m < p else sizes[0])
        for group in sorted({sizes[0], max(sizes), nominal}):
            base = (v - 1) * group
            tried = (in_groups(request, sizes, base + 2 * behind + extra) for extra in (0, p, m * v))
            yield from islice((table for table in tried if table.is_finite), 1)


def _cuts(m: int, p: int) -> list[tuple[int, ...]]:
    """Ways to cut m micro-batches into groups that travel together; the first is the published one."""
    whole, rest = divmod(m, p)
    cuts = [published_cut(m, p)]
    if rest:
        cuts += [balanced(m, rounds) for rounds in (max(1, whole), whole + 1)]
        if whole:
            cuts.append((p,) * (whole - 1) + (p + rest,))
            cuts.append((rest,) + (p,) * whole)
    return list(dict.fromkeys(cuts))


def published_cut(m: int, group: int) -> tuple[int, ...]:
    """Groups of one size, what is left over last."""
    whole, rest = divmod(m, group)
    return (group,) * whole + ((rest,) if rest else ())


def _fastest(request: Request, orders: Iterable[Table]) -> Table:
    """The order with the least makespan, then span, then peak, among those that fit; raises when none does."""
    # Scores are rounded to this, so that orders that differ by float noise tie and the leaner one wins.
    grain = 1e-10 * request.microbatches * float(request.costs.duration.sum()) or 1.0
    runs = [run(table, request.costs) for table in orders]
    fitting = [each for each in runs if each.peak_activations.max() <= request.memory_limit + TOLERANCE]
    if not fitting:
        raise request.refuse(
            f"the leanest order holds {min(each.peak_activations.max() for each in runs):g} micro-batches of "
            f"activations, the memory limit is {request.memory_limit:g}"
        )

    def score(each: Timeline) -> tuple[int, int, float]:
        return round(each.makespan / grain), round(each.span / grain), float(each.peak_activations.max())

    return min(fitting, key=score).table


def in_groups(request: Request, sizes: tuple[int, ...], warm_up: Ints, delay: Ints | int = FUSED) -> Table:
    """Groups of micro-batches walk through the chunks of a rank one group and chunk at a time.

    Where the groups have room for more micro-batches than there are, the last places stay empty: passes keep the
    turns that they have with full groups.
    """
    return warm_steady_cool(request, *_walks(sizes, request.virtual_stages), warm_up, delay)


def _walks(sizes: tuple[int, ...], chunks: int) -> tuple[Ints, Ints]:
    """Chunk and micro-batch of every forward of a rank."""
    size = np.repeat(np.asarray(sizes), chunks)
    start = np.repeat(np.cumsum(sizes) - sizes, chunks)
    inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    return np.repeat(np.tile(np.arange(chunks), len(sizes)), size), np.repeat(start, size) + inside


def balanced(m: int, rounds: int) -> tuple[int, ...]:
    """m micro-batches in as many groups as there are rounds, the larger ones first."""
    low, more = divmod(m, rounds)
    return (low + 1,) * more + (low,) * (rounds - more)


@register("interleaved-zb", summary="interleaved 1F1B with W in the gaps, memory of 1F1B", placement=Placement.LOOP,
          virtual_stages=None, splits_weight=True, cost_aware=True)  # fmt: skip
def interleaved_zb(request: Request) -> Table:
    """Bubble (p-1)(F+B-W)/v at F=B=W, peak p; a little more where m is no multiple of p."""
    p, m = request.stages, request.microbatches
    largest = -(-m // max(1, m // p))
    return optimise.fastest_loop(request, request.own_limit(max(p, largest)), partial(_patterns, group=p))


@register("gis", summary="interleaved in small groups, less memory", placement=Placement.LOOP, virtual_stages=None,
          splits_weight=True, cost_aware=True)  # fmt: skip
def gis(request: Request) -> Table:
    """Peak g + (p - g)/v; without a group, the largest that fits the memory limit."""
    p, v = request.stages, request.virtual_stages
    if request.group is not None and not 1 <= request.group <= p:
        raise request.refuse(f"group={request.group}; a group has 1 to stages = {p} micro-batches")
    sizes = [request.group] if request.group is not None else range(p, 0, -1)
    fitting = [g for g in sizes if memory(g, p, v) <= request.memory_limit + TOLERANCE]
    group = fitting[0] if fitting else sizes[-1]
    return optimise.fastest_loop(request, request.own_limit(memory(group, p, v)), partial(_patterns, group=group))


def memory(group: int, stages: int, virtual_stages: int) -> float:
    """Activations of a group size, in micro-batches through one full rank."""
    return group + (stages - group) / virtual_stages


def _patterns(request: Request, group: int) -> Iterator[Table]:
    """Interleaved orders with the warm-up of ZB-H1 and shorter, in groups of this size.

    What is left over goes last as a small group, or as a full one with empty places, or is shared among the groups.
    """
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    behind = p - 1 - np.arange(p)
    whole, rest = divmod(m, group)
    cuts = [published_cut(m, group)]
    if rest and v > 1:
        cuts += [(group,) * (whole + 1), balanced(m, max(1, whole))]
    for slope in (1, 2) if v > 1 else (1, 2, 3):
        for sizes in cuts:
            table = in_groups(request, sizes, (v - 1) * sizes[0] + slope * behind)
            if table.is_finite:
                yield table
