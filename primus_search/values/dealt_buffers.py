"""Elements of a buffer of whole matrices that is dealt to ranks in chunks, as Megatron-FSDP lays it out."""

from functools import lru_cache
from math import ceil, lcm


@lru_cache(maxsize=4096)
def filled(matrices: tuple[tuple[float, float, int], ...], count: int, shards: int, are_apart: int) -> float:
    """Elements of a buffer on all its ranks, each of which has whole chunks: the least common multiple of rows.

    matrices  rows, their length and how many       count  parameters in all       shards  ranks
    are_apart  parameters of no matrix have a buffer of their own; otherwise they fill what matrices leave empty
    """
    listed, chunk = sorted(((round(n), round(m), many) for n, m, many in matrices), key=lambda one: -one[1]), 1
    for rows, length, _ in listed:
        chunk = lcm(chunk, length) if rows * length >= chunk else chunk  # shorter ones fill gaps
    sizes = [rows * length for rows, length, copies in listed for _ in range(copies)]
    used = sum(size // chunk for size in sizes)
    rest = [size % chunk for size in sizes if size >= chunk and size % chunk]
    small = max(count - sum(size for size in sizes if size >= chunk), 0)
    while rest:
        one = rest.pop(0)
        other = next((size for size in rest if one + size <= chunk), 0)
        if other:
            rest.remove(other)
        used, small = used + 1, small if are_apart else max(small - (chunk - one - other), 0)
    inside, beside = (0, small) if are_apart else (small / chunk, 0)
    return float(shards * chunk * ceil((used + inside) / shards) + beside)
