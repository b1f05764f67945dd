"""Elements of a buffer of whole matrices that is dealt to ranks in chunks, as Megatron-FSDP lays it out."""

from functools import lru_cache
from math import ceil, lcm


@lru_cache(maxsize=4096)
def filled(numbers: tuple[int, ...]) -> float:
    """Elements of a buffer on all its ranks, each of which has whole chunks: the least common multiple of rows.

    numbers  rows, their length and copies of each matrix; then parameters in all, ranks, and whether those that are no
             matrices are apart, which otherwise fill what matrices leave empty
    """
    *each, count, shards, are_apart = numbers
    matrices, chunk = sorted(zip(each[::3], each[1::3], each[2::3], strict=True), key=lambda one: -one[1]), 1
    for rows, length, _ in matrices:
        chunk = lcm(chunk, length) if rows * length >= chunk else chunk  # shorter ones fill gaps
    sizes = [rows * length for rows, length, copies in matrices for _ in range(copies)]
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
