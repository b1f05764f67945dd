"""Interleaved 1F1B: vpp chunks per rank, micro-batches in groups (Narayanan et al. 2021, arXiv:2104.04473).

The published schedule needs m to be a multiple of p. Here any m works: several ways to cut m into groups are tried,
each with the shortest warm-up that cannot deadlock, and the fastest that fits the memory limit is kept.
"""

from collections.abc import Iterator

import numpy as np

from primus_search.errors import ScheduleError
from primus_search.schedule.choose import fastest
from primus_search.schedule.patterns import warm_steady_cool
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Ints, Placement, Table


@register("interleaved", summary="1F1B over vpp chunks per rank", placement=Placement.LOOP, virtual_stages=None,
          memory_aware=True)  # fmt: skip
def interleaved(request: Request) -> Table:
    """Bubble (p-1)(F+B+W)/v, peak (v p + p - 1)/v on rank 0, when m is a multiple of p.

    `group`: Megatron's microbatch_group_size_per_vp_stage; above p it hides hops and keeps more activations.
    """
    if request.group is not None and request.group < 1:
        raise request.refuse(f"group={request.group}; a group has at least 1 micro-batch")
    return fastest(request, _candidates(request))


def _candidates(request: Request) -> Iterator[Table]:
    p, m, v = request.stages, request.microbatches, request.virtual_stages
    behind = p - 1 - np.arange(p)
    if v == 1:
        yield in_groups(request, (m,), behind)
        return
    asked = request.group
    for sizes in _cuts(m, p) if asked is None else [_published_cut(m, asked)]:
        for group in sorted({sizes[0], max(sizes)} | ({asked} if asked is not None else set())):
            base = (v - 1) * group
            for extra in (0, p, m * v):
                table = in_groups(request, sizes, base + 2 * behind + extra)
                if runs(table):
                    yield table
                    break


def _cuts(m: int, p: int) -> list[tuple[int, ...]]:
    """Ways to cut m micro-batches into groups that travel together; the first is the published one."""
    whole, rest = divmod(m, p)
    cuts = [_published_cut(m, p)]
    if rest:
        cuts += [balanced(m, rounds) for rounds in (max(1, whole), whole + 1)]
        if whole:
            cuts.append((p,) * (whole - 1) + (p + rest,))
            cuts.append((rest,) + (p,) * whole)
    return list(dict.fromkeys(cuts))


def _published_cut(m: int, group: int) -> tuple[int, ...]:
    """Groups of one size, what is left over last."""
    whole, rest = divmod(m, group)
    return (group,) * whole + ((rest,) if rest else ())


def in_groups(request: Request, sizes: tuple[int, ...], warm_up: Ints) -> Table:
    """Groups of micro-batches walk through the chunks of a rank one group and chunk at a time.

    Where the groups have room for more micro-batches than there are, the last places stay empty: passes keep the
    turns that they have with full groups.
    """
    v = request.virtual_stages
    starts = np.concatenate([[0], np.cumsum(sizes)])
    micro = np.concatenate([np.tile(np.arange(starts[g], starts[g] + n), v) for g, n in enumerate(sizes)])
    chunk = np.concatenate([np.repeat(np.arange(v), n) for n in sizes])
    return warm_steady_cool(request, chunk, micro, warm_up)


def balanced(m: int, rounds: int) -> tuple[int, ...]:
    """m micro-batches in as many groups as there are rounds, the larger ones first."""
    low, more = divmod(m, rounds)
    return (low + 1,) * more + (low,) * (rounds - more)


def runs(table: Table) -> bool:
    """Whether an order can finish."""
    try:
        table.links  # noqa: B018  (asking for the links is what finds a deadlock)
    except ScheduleError:
        return False
    return True
