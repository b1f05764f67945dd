"""DualPipe and DualPipeV: forwards and backwards of opposite directions overlap (DeepSeek-V3, arXiv:2412.19437).

DualPipe holds two copies of the model that run through the ranks in opposite directions, half of the micro-batches
each. DualPipeV folds that at the middle: one copy in V placement. Both follow the eight steps that the
deepseek-ai/DualPipe README draws, with `half` the distance of a rank from the end of the fold.

Where the overlap is credited (`Costs.overlap`) the bubble is (P/2-1)(F&B + B_full - 3W), P = p or 2p.
"""

import numpy as np

from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Bools, Ints, PassKind, Placement, RankOrder, Table

FORWARD, INPUT_GRADIENT, BOTH_GRADIENTS, WEIGHT_GRADIENT = 0, 2, 4, 6
"""Tokens: add the direction (0 is the one this rank starts, 1 the one that comes back); W has none of its own."""
F0, F1 = FORWARD, FORWARD + 1
B0, B1 = INPUT_GRADIENT, INPUT_GRADIENT + 1
BW0, BW1 = BOTH_GRADIENTS, BOTH_GRADIENTS + 1
WG = WEIGHT_GRADIENT


@register("dualpipe", summary="two model copies in opposite directions, F and B overlapped",
          placement=Placement.BIDIRECTIONAL, splits_weight=True,
          serves=lambda p, m: (p % 2 == 0) & (m % 2 == 0) & (m >= 2 * p),
          needs="the two directions meet in the middle and run equally many micro-batches, at least as many as there "
                "are stages: stages and micro-batches must be even, micro-batches at least 2 * stages")  # fmt: skip
def dualpipe(request: Request) -> Table:
    """Peak p + 1, twice the parameters."""
    p, m = request.stages, request.microbatches
    ranks = []
    for r in range(p):
        down, up = r, p + (p - 1 - r)
        half = min(r, p - 1 - r)
        stages = (down, up) if r < p // 2 else (up, down)
        ranks.append(_eight_steps(p // 2, half, m // 2, stages))
    return Table.from_ranks(request.name, ranks, microbatches=m, placement=Placement.BIDIRECTIONAL)


@register("dualpipev", summary="DualPipe folded to a V, one model copy", placement=Placement.V, virtual_stages=(2,),
          splits_weight=True, serves=lambda p, m: m >= 2 * p,
          needs="the overlapped steady part needs at least 2 * stages micro-batches")  # fmt: skip
def dualpipev(request: Request) -> Table:
    """Peak (2p + 1)/2."""
    p, m = request.stages, request.microbatches
    ranks = [_eight_steps(p, r, m, (r, 2 * p - 1 - r)) for r in range(p)]
    return Table.from_ranks(request.name, ranks, microbatches=m, virtual_stages=2, placement=Placement.V)


def _eight_steps(depth: int, half: int, microbatches: int, stages: tuple[int, int]) -> RankOrder:
    """The order of a rank that is `half` away from the outer end of a fold of `depth` ranks."""
    ahead = depth - half - 1
    main = microbatches - 2 * depth + half + 1
    middle = half == depth - 1
    tail = np.tile([BW1, BW0], half + 1)
    split_from = 2 * ((half + 1) // 2) + (0 if half % 2 else 1)
    tail[split_from:] -= BOTH_GRADIENTS - INPUT_GRADIENT
    steps = [
        np.full(2 * ahead, F0),
        np.tile([F0, F1], half + 1),
        np.tile([B1, WG, F1], ahead),
        np.tile([F0, BW1, F1, BW0], main),
        np.tile([BW1, F1, BW0], ahead),
        tail,
        np.tile([WG, B0], ahead),
        np.full(half + 1, WG),
    ]
    at = np.cumsum([0] + [len(step) for step in steps])
    overlaps = np.zeros(at[-1], dtype=np.bool_)
    overlaps[at[3] : at[4] : 2] = True
    overlaps[at[4] + 1 : at[5] : 3] = True
    if middle and main > 0:
        overlaps[at[3]] = False
    return _numbered(np.concatenate(steps), overlaps, stages)


def _numbered(tokens: Ints, overlaps: Bools, stages: tuple[int, int]) -> RankOrder:
    """Give every token its stage and the next micro-batch of its direction; W takes the oldest split B."""
    kind = np.empty(len(tokens), dtype=np.int8)
    stage = np.empty(len(tokens), dtype=np.int16)
    micro = np.empty(len(tokens), dtype=np.int32)
    for direction in (0, 1):
        forward = np.flatnonzero(tokens == FORWARD + direction)
        backward = np.flatnonzero((tokens == INPUT_GRADIENT + direction) | (tokens == BOTH_GRADIENTS + direction))
        for rows in (forward, backward):
            stage[rows], micro[rows] = stages[direction], np.arange(len(rows))
        kind[forward] = PassKind.F
        kind[backward] = np.where(tokens[backward] == INPUT_GRADIENT + direction, PassKind.B, PassKind.BW)
    split = np.flatnonzero((tokens == B0) | (tokens == B1))
    weight = np.flatnonzero(tokens == WG)
    kind[weight], stage[weight], micro[weight] = PassKind.W, stage[split], micro[split]
    return RankOrder(kind, stage, micro, overlaps)
