# mypy: allow-untyped-defs
"""How Megatron deals whole matrices to replicas that work on them (layer-wise optimizers).

A bucket has a shard of one size for each replica, as large as the fullest of them; the replica that has it holds its
state whole. Matrices go, those with most work first, to the replica with least work so far whose shard stays below 1.3
of the mean, else to the emptiest shard. Work is that of orthogonalising a matrix, its longer side times the square of
its shorter one. A bucket is closed once it has as many parameters as one has, and 0.9 of a replica's largest matrix on
each, where the next matrix would make it longer.
Source: NVIDIA/Megatron-LM d98e8a64 core/optimizer/layer_wise_optimizer.py `_compute_per_buffer_param_layout`.

Loaded only by `whole_matrices`, when a row deals a buffer.
"""

from functools import lru_cache

import numpy as np

from primus_search.cost.memory.layer_matrices import Matrix
from primus_search.schedule.kernel_cache import njit

ROOM = 1.3
"""Most parameters of a replica in a bucket over their mean."""
FULL_ENOUGH = 0.9
"""Least parameters of a bucket over its largest matrix on every replica."""


@lru_cache(maxsize=1 << 14)
def room_of_replicas(matrices: tuple[Matrix, ...], shards: int, bucket: float) -> tuple[float, float]:
    """Parameters beyond those of matrices, in the order of backward, that their buffer has room for, and that replicas
    would have, were all as the one that has most."""
    rows, columns, many = np.array(matrices).reshape(-1, 3).T
    size, small, copies = rows * columns, np.minimum(rows, columns), many.astype(np.int64)
    size, work = np.repeat(size, copies), np.repeat(size * small, copies)
    number = buckets_of(size, shards, bucket, FULL_ENOUGH)
    order = np.lexsort((-work, number))
    room, fullest = dealt(size[order], work[order], number[order], shards, ROOM)
    return room - size.sum(), fullest - size.sum()


@njit(cache=True, nogil=True)
def buckets_of(size, shards, bucket, full_enough):
    """The bucket of each matrix, in the order of backward."""
    number, filled, largest, loads = np.zeros(len(size), np.int64), 0.0, 0.0, np.zeros(shards)
    for i in range(1, len(size) + 1):
        filled, largest = filled + size[i - 1], max(largest, size[i - 1])
        loads[loads.argmin()] += size[i - 1]
        if i == len(size):
            break
        number[i] = number[i - 1]
        if filled >= max(bucket, full_enough * shards * largest) and loads.min() + size[i] > loads.max():
            number[i] += 1
            filled, largest, loads = 0.0, 0.0, np.zeros(shards)
    return number


@njit(cache=True, nogil=True)
def dealt(size, work, bucket, shards, most):
    """Parameters of all shards of a buffer of these matrices, bucket by bucket; of as many of the fullest replica."""
    room, total, of_all, held = 0.0, np.zeros(shards), np.zeros(shards), np.zeros(shards)
    for i in range(len(size)):
        if i == 0 or bucket[i] != bucket[i - 1]:
            room += shards * held.max()
            held, of_bucket = np.zeros(shards), size[bucket == bucket[i]].sum()
        best = -1
        for one in range(shards):
            if held[one] + size[i] <= most * of_bucket / shards and (best < 0 or total[one] < total[best]):
                best = one
        if best < 0:
            best = int(held.argmin())
        held[best] += size[i]
        of_all[best] += size[i]
        total[best] += work[i]
    return room + shards * held.max(), shards * of_all.max()
